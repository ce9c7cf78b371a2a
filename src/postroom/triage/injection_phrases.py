"""Phrases of mail that addresses a model, in the languages we know, grouped by what they reveal.

They are matched against lowercase text without accents, reduced to words and sentence ends separated by single
blanks; `~` stands for up to four words of the same sentence. Marks are matched as they stand.
"""

from __future__ import annotations

from dataclasses import dataclass

# ruff: noqa: RUF001 - letters of other languages


STRONG, WEAK = 2, 1
"""A strong sign is enough; of weak ones it takes two, because honest mail has one now and then."""

_INSTRUCTIONS = "(?:instructions?|rules|prompts?|directions|guidelines|directives|restrictions|programming)"
_MODEL = r"\b(?:ai|llms?|gpt|chatgpt|language models?|ai (?:assistants?|agents?|models?|systems?|bots?)|chatbots?)\b"
_HELPER = (
    rf"(?:{_MODEL}|assistant|e ?mail (?:assistant|agent|bot|filter)s?|automated (?:mail )?(?:filter|system|agent)s?)\b"
)
_MAIL = r"(?:e ?mails?|mails?|messages?|threads?|correspondence|inbox|mailbox|everything)\b"
_ACT = "(?:archive|trash|delete|forward|send|star|snooze|label|reply to|answer)"
_HIDE = "(?:archive|mark read|mark as read|snooze|trash|delete|hide)"


@dataclass(frozen=True, slots=True)
class PhraseGroup:
    sign: str
    """What such a phrase gives away, for the person who is asked."""
    weight: int
    phrases: tuple[str, ...]


GROUPS = (
    PhraseGroup(
        "it tells the reader to set instructions aside",
        STRONG,
        (
            "(?:ignore|disregard|forget|override|bypass|overrule) "
            "~(?:previous|prior|above|earlier|preceding|all|any|your|"
            f"existing|system|safety|other) ~{_INSTRUCTIONS}",
            f"(?:ignore|disregard|forget|override|bypass) ~{_INSTRUCTIONS} (?:above|before|you (?:were|have "
            f"been) given)",
            "(?:ignorier[a-z]*|vergiss|vergessen sie|missachte[a-z]*) "
            "~(?:alle|bisherigen?|vorherigen?|obigen?|vorigen?|"
            "deine|ihre) ~(?:anweisung|instruktion|regel|vorgabe|befehl)[a-z]*",
            "(?:ignore[rz]?|oublie[rz]?) ~(?:instructions|consignes|directives) ~(?:precedente|anterieure|ci "
            "dessus|donnee)",
            "(?:ignora|ignore|olvida|olvide|omite) ~(?:instrucciones|indicaciones|reglas) "
            "~(?:anteriores|previas|recibidas)",
            "(?:ignora|ignorare|dimentica) ~(?:istruzioni|indicazioni|regole) ~(?:precedenti|ricevute|sopra)",
            "(?:ignore|ignora|esqueca|desconsidere) ~(?:instrucoes|orientacoes|regras) "
            "~(?:anteriores|previas|recebidas)",
            "(?:negeer|vergeet) ~(?:eerdere|vorige|alle|bovenstaande) ~(?:instructies|aanwijzingen|regels)",
            "(?:zignoruj|ignoruj|zapomnij) ~(?:poprzedni|wczesniejsz|wszystki)[a-z]* ~(?:instrukcj|polece|zasad)",
            "(?:zanemari|ignoriraj|zaboravi)(?:te)? ~(?:prethodn|ranij|sve)[a-z]* ~(?:uput|instrukcij|pravil)",
            "(?:про)?(?:игнорируй|забудь)(?:те)? ~(?:предыдущ|прошл|вс)\\pL* ~(?:инструкц|указан|правил)",
            "(?:проігноруй|ігноруй|забудь)(?:те)? ~(?:попередн|вс)\\pL* ~(?:інструкц|вказів|правил)",
            "(?:忽略|无视|忽視|忘记|不要理会).{0,12}(?:指令|指示|说明|規則|规则|提示)",
            "(?:指示|命令|指令).{0,10}(?:無視|忘れ)",
            "(?:지시|지침|명령).{0,10}(?:무시|잊)",
            "(?:تجاهل|انس).{0,24}(?:التعليمات|الأوامر|القواعد)",
            "(?:glem|ignorer|glom|ignorera|bortse fran|se bort fra) "
            "~(?:tidligere|alle|forrige|tidigare|alla|foregaende) "
            "~(?:instruks|instruktion|anvisning|regler)",
            "(?:unohda|ohita|ala valita) ~(?:aiemmat|aiemmista|kaikki|edelliset) ~(?:ohjee|ohjeet|saannot)",
            "(?:ignoruj|zapomen|nedbej)[a-z]* ~(?:predchozi|vsechny|predosle|vsetky)[a-z]* ~(?:pokyn|instrukc|pravidl)",
            "(?:hagyd figyelmen kivul|felejtsd el) ~(?:korabbi|elozo|osszes) ~(?:utasit|szabaly)",
            "(?:ignora|uita)[a-z]* ~(?:instructiunile|regulile|indicatiile) ~(?:anterioare|precedente|de mai sus)",
            "(?:αγνοησ|ξεχασ)\\pL* ~(?:προηγουμεν|ολες)\\pL* ~(?:οδηγι|εντολ|κανον)",
            "(?:abaikan|lupakan) ~(?:semua|instruksi|arahan|perintah) ~(?:sebelumnya|sebelum|terdahulu)",
            "(?:bo qua|quen) ~(?:huong dan|chi dan|lenh|quy tac) ~(?:truoc|tren)",
            "(?:התעלם|התעלמי|שכח).{0,16}(?:הוראות|ההוראות|הנחיות)",
            "(?:دستور|دستورالعمل).{0,24}(?:نادیده|فراموش)",
            "(?:talimat|yonerge|kural)\\pL* ~(?:yok say|gormezden gel|unut|dikkate alma)",
        ),
    ),
    PhraseGroup(
        "it speaks to a model instead of to a person",
        STRONG,
        (
            f"(?:note|message|instructions?|attention|hint|notice|advice|memo) (?:to |for |the |any |all |an "
            f"|your )*{_HELPER}",
            f"(?:if|when|since) you (?:are|re) (?:reading this as )?(?:an? )?(?:large )?{_HELPER}",
            "you are (?:now |the |a |an |my )~(?:ai|llm|gpt|language model|chatbot)\\b",
            f"{_HELPER} (?:: )?(?:please )?(?:you must|you should|you are to|ignore|disregard|{_ACT} "
            f"(?:this|all|every|the|it|everything))",
            f"(?:ai|automated) (?:systems?|assistants?|agents?|models?|filters?) (?:must|shall|have to|are "
            f"(?:to|required to)) {_ACT}",
            f"(?:have|tell|let|ask|authori[sz]e|instruct) (?:my|your|the) (?:ai )?(?:assistant|agent|model) "
            f"(?:to )?{_ACT}",
            "(?:assistant|agent|bot|ai|model) (?:without|free of|with no) "
            "(?:restrictions|limits|limitations|rules|filters)",
            "(?:repeat|reveal|print|show|output|quote) ~(?:your|the) (?:system prompt|hidden prompt|initial "
            "instructions)",
            "(?:hinweis|anweisung|instruktion|nachricht|befehl)[a-z]* (?:an|fur) (?:die |den |das |deine "
            "|ihre[n]? )?(?:ki|"
            "sprachmodell|assistent)",
            "(?:note|instructions?|message|consigne) (?:a|pour) (?:l |votre |ton )?(?:ia|assistant|modele)",
            "(?:ki|ai) ?(?:assistent|system|modell|agent|filter)[a-z]* "
            "~(?:soll|muss|mussen|sollen|archivier|losch|ignorier)",
            "(?:assistant|agent|ia|modele) ~(?:archive[zr]?|supprime[zr]?|ignore[zr]|masque[rz]?) "
            "(?:ce|cet|cette|tous|toutes|les)",
            "(?:asistente|ia|modelo) ~(?:archiv[ae]|borr[ae]|elimin[ae]|ignor[ae]|ocult[ae]) "
            "(?:este|todos|los|las|la|el)",
            "(?:assistente|ia|modelo) "
            "~(?:arquiv[ae]|apagu?[ae]|exclu[ai]|archivi[a]?|elimin[aie]|ignor[aei]|nascond[ai]) "
            "(?:est[ae]|todos|todas|os|as|quest[oa]|tutt[ie]|i|gli|le|il)",
            "(?:assistent|model|ai) ~(?:archiveer|verwijder|negeer|verberg) (?:dit|deze|alle|de)",
            "(?:asystencie|asystent|modelu) ~(?:zarchiwizuj|usun|zignoruj|ukryj)",
            "(?:asistente|pomocnice|asistent|model) ~(?:arhiviraj|obrisi|zanemari|sakrij)",
            "(?:ассистент|помощник|нейросет|модел|бот)\\pL* ~(?:заархивируй|архивируй|удали|игнорируй|скрой|перемести)",
            "(?:асистент|помічник|нейромереж|модел)\\pL* ~(?:заархівуй|видали|ігноруй|приховай)",
            "(?:asistan|yapay zeka|model)\\pL* ~(?:arsivle|sil|gizle|yok say)",
            "(?:asisten|model|ai) ~(?:arsipkan|hapus|sembunyikan|abaikan)",
            "(?:tro ly|mo hinh|ai) ~(?:luu tru|xoa|an|bo qua)",
            "(?:助手|助理|模型|人工智能|人工智慧|ai).{0,10}(?:归档|歸檔|存档|删除|刪除|忽略|标记|標記|转发|隐藏)",
            "(?:アシスタント|モデル|ai|エージェント).{0,24}(?:アーカイブ|削除|無視|転送|既読|非表示)",
            "(?:비서|어시스턴트|모델|ai).{0,24}(?:삭제|보관|무시|전달|숨기|읽음)",
            "(?:المساعد|الذكاء الاصطناعي|النموذج).{0,24}(?:احذف|أرشف|تجاهل|أعد توجيه|أخف)",
            "(?:העוזר|המודל|הבינה).{0,20}(?:מחק|העבר|התעלם|הסתר)",
            "(?:nota|instruccion(?:es)?|mensaje) (?:para|a|al) (?:la |el |tu )?(?:ia|asistente|modelo)",
        ),
    ),
    PhraseGroup(
        "it asks for other messages to be put out of sight",
        STRONG,
        (
            rf"(?:archive|archiving|hide|hiding|snooze|put away|file away|tidy away|clear away|sweep away|mute) "
            rf"~(?:other|others|remaining|rest of|all|every|older|unread|earlier|everything) ~{_MAIL}",
            rf"(?:mark|marking|set) ~(?:other|all|remaining|every|rest "
            rf"of|older|unread) ~{_MAIL} (?:as |to )?(?:be )?read\b",
            "(?:archivier|versteck|verberg|ausblend|blende|raume|verschieb)[a-z]* "
            "~(?:alle|ubrigen?|anderen?|restlichen?|weiteren?|sonstigen?) ~(?:nachricht|mail|e ?mail|posteingang)",
            "(?:ubrigen?|anderen?|restlichen?|alle) ~(?:nachrichten|mails|e ?mails) "
            "~(?:archivier|zu archivier|ausblend|auszublend|als gelesen)",
            "(?:archive[rz]?|masque[rz]?|cache[rz]?|range[rz]?) "
            "~(?:autres|tous|toutes|reste) ~(?:messages?|mails?|courriels?|e ?mails?)",
            "(?:archiv|ocult|escond|silenci|guard)[a-z]* "
            "~(?:demas|otros|otras|todos|resto|restantes) ~(?:mensajes|correos|mails)",
            "(?:arquiv|ocult|escond)[a-z]* ~(?:outr[ao]s|tod[ao]s|demais|restantes) ~(?:mensagens|emails|e ?mails)",
            "(?:archivi|nascond|nascost)[a-z]* ~(?:altr[ie]|tutt[ie]|restanti) ~(?:messaggi|mail|e ?mail)",
            "(?:archiveer|verberg|archiveren) ~(?:andere|overige|alle) ~(?:berichten|mails?|e ?mails?)",
            "(?:zarchiwizuj|zarchiwizowac|ukryj|ukryc)[a-z]* ~(?:pozostal|inne|wszystki)[a-z]* ~(?:wiadomosci|maile)",
            "(?:arhivira|sakri)[a-z]* ~(?:ostal|drug|sve)[a-z]* ~(?:poruk|mail|post)",
            "(?:архивир|заархивир|скр|спря|убер)\\pL* ~(?:остальн|друг|все)\\pL* ~(?:письм|сообщен)",
            "(?:заархівуй|архівуй|приховай|сховай)\\pL* ~(?:інш|решт|усі|всі)\\pL* ~(?:лист|повідомлен)",
            "(?:diger|tum|kalan|butun) ~(?:ileti|mesaj|e ?posta)\\pL* ~(?:arsivle|gizle|okundu)",
            "(?:arsipkan|sembunyikan) ~(?:semua|lain|pesan|email) ~(?:pesan|email|lain|lainnya|surel)",
            "(?:luu tru|an) ~(?:cac|tat ca|nhung) ~(?:thu|tin nhan|email)",
            "(?:arkivera|dolj|gom) ~(?:andra|alla|ovriga) ~(?:meddelanden|mejl|mail)",
            "(?:arkiver|skjul) ~(?:andre|alle|ovrige|resterende) ~(?:beskeder|meldinger|mails?|e ?poster)",
            "(?:arkistoi|piilota)[a-z]* ~(?:muut|kaikki|loput) ~(?:viestit|sahkopostit)",
            "(?:archivuj|skryj)[a-z]* ~(?:ostatni|vsechny|vsetky)[a-z]* ~(?:zpravy|spravy|e ?maily)",
            "(?:archival|rejts)[a-z]* ~(?:tobbi|osszes|minden) ~(?:uzenet|level|e ?mail)",
            "(?:arhiv|ascund)[a-z]* ~(?:celelalte|toate) ~(?:mesaje|e ?mail)",
            "(?:αρχειοθετ|αποκρυ|κρυ)\\pL* ~(?:υπολοιπ|αλλα|ολα)\\pL* ~(?:μηνυμα|email)",
            "(?:归档|歸檔|存档|封存|隐藏|隱藏|标记|標記).{0,12}(?:其他|其它|所有|全部|其余|其餘).{0,8}(?:邮件|郵件|消息|信件|訊息)",
            "(?:其他|其它|所有|全部|其余|其餘).{0,8}(?:邮件|郵件|消息|信件|訊息).{0,12}(?:归档|歸檔|存档|封存|隐藏|隱藏|已读|已讀|收起)",
            "(?:他の|ほかの|すべての|全ての|残りの).{0,8}(?:メール|メッセージ).{0,12}(?:アーカイブ|非表示|既読|隠)",
            "(?:다른|모든|나머지).{0,16}(?:메일|메시지).{0,24}(?:보관|숨기|숨겨|읽음)",
            "(?:أرشف|أرشفة|أخف|إخفاء|اخفاء).{0,20}(?:الرسائل|البريد)",
            "(?:העבר|הסתר|לארכיון).{0,24}(?:ההודעות|המיילים|הודעות)",
        ),
    ),
    PhraseGroup(
        "it fills in what a model would answer",
        STRONG,
        (
            "(?:sender|message|mail|subject|from|item) (?:[^ "
            ".!?]{1,20} ){0,3}?(?:action|handling|treatment|what to do) "
            f"(?:: )?(?:[^ .!?]{{1,30}} ){{1,12}}?{_HIDE}\\b",
            f"(?:action|decision|tool|verdict) (?:: )?{_HIDE} (?:[^ .!?]{{1,20}} ){{0,6}}?"
            "(?:confidence|certainty|approval|reason|sure)\\b",
            f"(?:confidence|certainty) (?:: )?(?:1|100|high|full) (?:[^ "
            f"!?]{{1,20}} ){{0,8}}?(?:action|decision) (?:: )?{_HIDE}",
        ),
    ),
    PhraseGroup(
        "it repeats instructions that only the model gets",
        STRONG,
        (
            "your last answer could not be used",
            "the owner s (?:rules|directions) (?:for this message )?:",
            "user : [^:]{1,300} assistant : [^:]{1,300} user :",
            "system : (?:ignore|new|you|your|policy|from now)",
        ),
    ),
    PhraseGroup(
        "it claims that someone approved",
        STRONG,
        (
            "(?:approved|authori[sz]ed|permitted) (?:this|the|these|all) (?:actions?|assistants?|agents?|operations?)",
            "i (?:hereby )?authori[sz]e (?:my|the|your) (?:assistant|agent|ai)",
            "approvals? (?:is|are|has been|have been) (?:switched off|turned off|disabled|suspended|waived|off)",
        ),
    ),
    PhraseGroup(
        "it says what is to be done with mail",
        WEAK,
        (
            rf"(?:delete|trash|archive|erase|purge)s? "
            rf"~(?:this|that|all|every|each|these|it|the|whatever|everything) ~{_MAIL}",
            "(?:trash|archive)(?:es|s)? (?:whatever|everything|all)",
            "mark (?:it|this|them|these|this message|this mail) as read",
            "moves? ~(?:to|into) the (?:trash|bin)",
            rf"safe to {_ACT}|call (?:the tool )?(?:archive|trash|forward|delete|auto_reply)\b",
            "forward ~(?:to|at) [^ ]{1,64} @",
            "(?:losche?n?|loscht) ~(?:alle|samtliche|diese|jede) ~(?:e ?mails?|nachrichten?|mails)",
            "(?:transfere|envoie|reenvia|encaminhe|inoltra|proslijedi|stuur)[a-z]* ~[^ ]{1,64} @",
            "(?:sposta|verplaats|mueve|mova) ~(?:cestino|prullenbak|papelera|lixeira)",
            "(?:usun|obrisi|izbrisi|удали|видали)[^ ]* ~(?:wiadomosci|poruk|e ?mail|письм|лист|сообщен)",
            "instructions : (?:trash|delete|archive|forward)",
        ),
    ),
    PhraseGroup(
        "it asks that no one be consulted",
        WEAK,
        (
            r"(?:without|no) (?:[^ ]+ )?(?:asking|approval|confirmation)\b",
            "(?:do not|don t|never) (?:ask|tell|notify|inform|alert)(?: anyone| the user| the owner| a "
            "person| permission| [.])",
            "not (?:be )?shown to the (?:user|owner|recipient)|say nothing about it",
            "(?:не спрашив|без подтвержден|без разрешен|без запит|не питай)",
            "(?:不要询问|无需确认|無需確認|不用确认|不要通知|无需批准)|(?:確認せずに|承認なし|確認不要)|(?:확인 "
            "없이|승인 없이|묻지 말)",
            "(?:دون تأكيد|دون إذن|بدون موافقة)|(?:sormadan|onay almadan)|tanpa (?:konfirmasi|persetujuan|bertanya)",
            "(?:frage niemanden|ohne ruckfrage|ohne zu fragen|ohne bestatigung)",
            "(?:sans|sin|sem|senza|zonder|bez) ~(?:confirm|aprob|aprov|approv|bevestig|potvrd|potwierdz)",
            "no pidas (?:aprobacion|permiso|confirmacion)|ne demande[zr]? (?:pas|aucune)",
        ),
    ),
    PhraseGroup(
        "it names the machinery of a model", WEAK, ("system prompt|prompt injection|jailbreak|large language model",)
    ),
    PhraseGroup(
        "it asks to be decoded and obeyed", WEAK, ("decode (?:this|the following|it) ~(?:obey|do what|follow|execute)",)
    ),
    PhraseGroup("it says how sure to be", WEAK, (r"confidence (?:of |: )?(?:1|100)\b",)),
    PhraseGroup(
        "it changes the reader's task",
        WEAK,
        ("your (?:new )?task (?:has changed|is now)|from now on you are|new instructions",),
    ),
    PhraseGroup(
        "it speaks of modes and safety rules",
        WEAK,
        ("(?:debug|developer|admin|god) mode|override the (?:safety|security)",),
    ),
    PhraseGroup(
        "it calls itself a test of a model",
        WEAK,
        ("(?:penetration|security) test of your (?:ai|model|agent|assistant)",),
    ),
    PhraseGroup(
        "it speaks of your model", WEAK, (r"your (?:ai|ai model|ai assistant|llm|mail agent|email assistant)\b",)
    ),
)

MARKS = PhraseGroup(
    "it imitates a prompt, a tool's call or the marks around mail",
    STRONG,
    (
        r"<\s?/?\s?(?:mail|thread|system|instructions?|tool_?(?:call|use|result)s?|function_?calls?|assistant)[\s/>]",
        r"<\|[a-z_]{2,20}\|>",
        r"\[/?inst\]|<<?/?sys>>?",
        r"(?:^|\n)#{1,4} ?(?:system|instructions?|response|assistant)\s*(?:\n|$)",
        "needs_approval|require_approval|by_owner|tool_calls?",
        r'"(?:arguments|confidence)"\s?:',
    ),
)
