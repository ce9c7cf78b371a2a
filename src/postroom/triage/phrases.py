"""How mail talks that is meant for a model: phrases in the languages that we know, grouped by what they give away.

Phrases are looked for in texts of small letters without accents, reduced to words and the ends of sentences with a
blank between each; `~` stands for up to four more words of the same sentence. Marks are looked for as they stand.
"""

from __future__ import annotations

from dataclasses import dataclass

STRONG, WEAK = 2, 1
"""A strong sign is enough; of weak ones it takes two, because honest mail has one now and then."""

_INSTRUCTIONS = "(?:instructions?|rules|prompts?|directions|guidelines|directives|restrictions|programming)"
_MODEL = r"\b(?:ai|llms?|gpt|chatgpt|language models?|ai (?:assistants?|agents?|models?|systems?|bots?)|chatbots?)\b"
_HELPER = (
    rf"(?:{_MODEL}|assistant|e ?mail (?:assistant|agent|bot|filter)s?|automated (?:mail )?(?:filter|system|agent)s?)\b"
)
_MAIL = r"(?:e ?mails?|mails?|messages?|threads?|correspondence|inbox|mailbox|everything)\b"
_ACT = "(?:archive|trash|delete|forward|send|star|snooze|label|reply to|answer)"


@dataclass(frozen=True, slots=True)
class Group:
    sign: str
    """What such a phrase gives away, for the person who is asked."""
    weight: int
    phrases: tuple[str, ...]


GROUPS = (
    Group(
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
            "(?:talimat|yonerge|kural)\\pL* ~(?:yok say|gormezden gel|unut|dikkate alma)",
        ),
    ),
    Group(
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
            "(?:nota|instruccion(?:es)?|mensaje) (?:para|a|al) (?:la |el |tu )?(?:ia|asistente|modelo)",
        ),
    ),
    Group(
        "it repeats what only the model is told",
        STRONG,
        (
            "your last answer could not be used",
            "the owner s (?:rules|directions) (?:for this message )?:",
            "user : [^:]{1,300} assistant : [^:]{1,300} user :",
            "system : (?:ignore|new|you|your|policy|from now)",
        ),
    ),
    Group(
        "it claims that somebody approved",
        STRONG,
        (
            "(?:approved|authori[sz]ed|permitted) (?:this|the|these|all) (?:actions?|assistants?|agents?|operations?)",
            "i (?:hereby )?authori[sz]e (?:my|the|your) (?:assistant|agent|ai)",
            "approvals? (?:is|are|has been|have been) (?:switched off|turned off|disabled|suspended|waived|off)",
        ),
    ),
    Group(
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
    Group(
        "it wants nobody to be asked",
        WEAK,
        (
            r"(?:without|no) (?:[^ ]+ )?(?:asking|approval|confirmation)\b",
            "(?:do not|don t|never) (?:ask|tell|notify|inform|alert)(?: anyone| the user| the owner| a "
            "person| permission| [.])",
            "not (?:be )?shown to the (?:user|owner|recipient)|say nothing about it",
            "(?:frage niemanden|ohne ruckfrage|ohne zu fragen|ohne bestatigung)",
            "(?:sans|sin|sem|senza|zonder|bez) ~(?:confirm|aprob|aprov|approv|bevestig|potvrd|potwierdz)",
            "no pidas (?:aprobacion|permiso|confirmacion)|ne demande[zr]? (?:pas|aucune)",
        ),
    ),
    Group(
        "it names the machinery of a model", WEAK, ("system prompt|prompt injection|jailbreak|large language model",)
    ),
    Group(
        "it asks to be decoded and obeyed", WEAK, ("decode (?:this|the following|it) ~(?:obey|do what|follow|execute)",)
    ),
    Group("it says how sure to be", WEAK, (r"confidence (?:of |: )?(?:1|100)\b",)),
    Group(
        "it changes the reader's task",
        WEAK,
        ("your (?:new )?task (?:has changed|is now)|from now on you are|new instructions",),
    ),
    Group(
        "it speaks of modes and safety rules",
        WEAK,
        ("(?:debug|developer|admin|god) mode|override the (?:safety|security)",),
    ),
    Group(
        "it calls itself a test of a model",
        WEAK,
        ("(?:penetration|security) test of your (?:ai|model|agent|assistant)",),
    ),
    Group("it speaks of your model", WEAK, (r"your (?:ai|ai model|ai assistant|llm|mail agent|email assistant)\b",)),
)

MARKS = Group(
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
