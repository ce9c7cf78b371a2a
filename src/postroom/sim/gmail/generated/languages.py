"""What people write, in the languages and charsets in which mail arrives. All of it was written for Postroom."""

from __future__ import annotations

from dataclasses import dataclass

# Other alphabets are the point here, so letters that resemble Latin ones are no accident.
# ruff: noqa: RUF001


@dataclass(frozen=True, slots=True)
class Language:
    code: str
    charsets: tuple[str, ...]
    greeting: str
    closing: str
    subjects: tuple[str, ...]
    sentences: tuple[str, ...]


ENGLISH = Language(
    "en",
    ("us-ascii", "us-ascii", "utf-8", "utf-8"),
    "Hi {name},",
    "Best,",
    (
        *("Lunch on Thursday?", "Photos from the weekend", "The keys", "Moving the piano", "Draft of the letter"),
        *("Garden fence", "Are you coming on Saturday?", "Notes from yesterday", "The leaking tap", "Book for you"),
        *("Birthday plans", "Train times", "Question about the budget", "School play", "Choir rehearsal"),
        *("The invoice for the boat", "Your half of the bill", "Money for the present", "Flights to Oslo?"),
        *("My appointment with the dentist", "Which hotel for the wedding?", "Tickets for Saturday", "My knee"),
    ),
    (
        "I looked at it again last night and I think we should keep the second version.",
        "The plumber can only come between nine and eleven, so one of us has to be there.",
        "Do you remember where we put the blue folder after the move?",
        "I have attached what I have so far; please be honest.",
        "My sister says hello and asks whether you still have her umbrella.",
        "If it rains we can still meet at my place, the kettle works again.",
        "The numbers for March are a little higher than we expected.",
        "Could you send me the address once more? I cannot find the old message.",
        "We counted the chairs twice and there are still three missing.",
        "It was good to see everybody, even if it was far too short.",
        "Let me know by Wednesday, otherwise I will simply book it.",
        "The dog ate the first page, but the rest is readable.",
    ),
)

OTHERS = (
    Language(
        "de",
        ("iso-8859-1", "utf-8", "windows-1252", "iso-8859-15"),
        "Hallo {name},",
        "Viele Grüße",
        (
            *("Grüße aus Köln", "Frage zur Übergabe", "Schlüssel für die Wohnung", "Termin nächste Woche"),
            *("Äpfel übrig", "Die Rechnung vom Klempner", "Flug nach Rom?"),
        ),
        (
            "Ich habe die Unterlagen gestern in den Briefkasten geworfen.",
            "Können wir das Gespräch auf übermorgen verschieben?",
            "Der Zug hatte schon wieder Verspätung, deshalb war ich zu spät.",
            "Für das Frühstück fehlen noch Brötchen und etwas Käse.",
            "Meine Mutter lässt schön grüßen und dankt für die Blumen.",
            "Das Paket müsste spätestens am Dienstag bei dir sein.",
        ),
    ),
    Language(
        "fr",
        ("iso-8859-1", "utf-8", "iso-8859-15"),
        "Bonjour {name},",
        "À bientôt",
        (
            *("Dîner samedi ?", "Les clés du grenier", "Réunion déplacée", "Photos de l'été", "Ça avance"),
            *("La facture du garage", "Mon rendez-vous lundi"),
        ),
        (
            "J'ai retrouvé le carnet que tu cherchais derrière l'étagère.",
            "Le train de dix-huit heures est supprimé, je prendrai le suivant.",
            "Peux-tu relire ce texte avant que je l'envoie à la mairie ?",
            "Les enfants ont préféré la forêt à la plage, comme toujours.",
            "On a déjà réservé une table, il ne manque que toi.",
        ),
    ),
    Language(
        "es",
        ("utf-8", "iso-8859-1", "windows-1252"),
        "Hola {name}:",
        "Un abrazo",
        (
            *("¿Vienes mañana?", "Las llaves del piso", "Reunión del miércoles", "Canción para el niño", "Más fotos"),
            *("El recibo de la luz", "Tu vuelo"),
        ),
        (
            "Ayer hablé con la vecina y dice que el ascensor ya funciona.",
            "¿Puedes traer pan y algo de fruta para el desayuno?",
            "El señor de la tienda guardó el paquete hasta el viernes.",
            "Nos quedan dos días y todavía falta pintar el salón.",
            "Mi hermano llegará en otoño con toda la familia.",
        ),
    ),
    Language(
        "pt",
        ("utf-8", "iso-8859-1"),
        "Olá {name},",
        "Até amanhã",
        ("Almoço de domingo", "Avaliação do projeto", "Chaves da garagem", "Reunião às três"),
        (
            "Já comprei os bilhetes, são lugares à janela.",
            "A reunião foi boa, mas não decidimos nada ainda.",
            "Você pode trazer o violão e algumas canções?",
            "Amanhã não estou em casa, deixe tudo com a Conceição.",
        ),
    ),
    Language(
        "pl",
        ("iso-8859-2", "utf-8", "windows-1250"),
        "Cześć {name},",
        "Pozdrawiam",
        ("Zdjęcia z wycieczki", "Klucze do piwnicy", "Spotkanie w środę", "Książka dla ciebie"),
        (
            "Wysłałem już paczkę, powinna dojść w piątek.",
            "Czy możesz przynieść żółtą teczkę na spotkanie?",
            "Babcia upiekła ciasto i pyta, kiedy przyjedziesz.",
            "Pociąg spóźnił się o godzinę, więc nie zdążyłam.",
        ),
    ),
    Language(
        "cs",
        ("iso-8859-2", "windows-1250", "utf-8"),
        "Ahoj {name},",
        "Měj se",
        ("Oběd ve čtvrtek", "Klíče od chaty", "Schůzka přesunuta", "Křeslo po babičce"),
        (
            "Zítra přijede řemeslník, buď prosím doma po deváté.",
            "Našel jsem ten starý žebřík, stojí za kůlnou.",
            "Děti už spí, tak můžeme v klidu mluvit.",
            "Příští týden bude konečně teplo.",
        ),
    ),
    Language(
        "ru",
        ("koi8-r", "windows-1251", "utf-8"),
        "Привет, {name}!",
        "До встречи",
        ("Встреча в субботу", "Ключи от дачи", "Фотографии с прогулки", "Вопрос по смете"),
        (
            "Я вчера нашла ту книгу, о которой мы говорили.",
            "Поезд приходит в семь, встречать меня не нужно.",
            "Соседи просят не шуметь после одиннадцати.",
            "Посмотри, пожалуйста, второй вариант письма.",
            "На рынке уже продают первые яблоки.",
        ),
    ),
    Language(
        "uk",
        ("koi8-u", "utf-8", "windows-1251"),
        "Вітаю, {name}!",
        "Гарного дня",
        ("Зустріч у п'ятницю", "Ключі від їдальні", "Ґрунт для саду", "Їдемо в гори"),
        (
            "Ми вже купили квитки на ранковий потяг.",
            "Чи зможеш ти принести намет і ліхтар?",
            "Бабуся передає вітання і варення.",
            "Завтра обіцяють дощ, тож візьми парасольку.",
        ),
    ),
    Language(
        "el",
        ("iso-8859-7", "utf-8", "windows-1253"),
        "Γεια σου {name},",
        "Τα λέμε",
        ("Συνάντηση την Τρίτη", "Τα κλειδιά του σπιτιού", "Φωτογραφίες από το νησί"),
        (
            "Το πλοίο φεύγει νωρίς, μην αργήσεις.",
            "Βρήκα τα χαρτιά πίσω από το ντουλάπι.",
            "Η γιαγιά ρωτάει πότε θα έρθεις.",
        ),
    ),
    Language(
        "tr",
        ("iso-8859-9", "utf-8", "windows-1254"),
        "Merhaba {name},",
        "Görüşmek üzere",
        ("Perşembe öğle yemeği", "Evin anahtarları", "Toplantı ertelendi", "Çiçekler için"),
        (
            "Bahçedeki ağaçlar bu yıl çok güzel çiçek açtı.",
            "Toplantıyı öğleden sonraya alabilir miyiz?",
            "Kardeşim yarın akşam İzmir'den geliyor.",
            "Şemsiyeni bizde unutmuşsun.",
        ),
    ),
    Language(
        "ja",
        ("iso-2022-jp", "utf-8", "shift_jis", "euc-jp"),
        "{name} さん",
        "よろしくお願いします",
        ("土曜日の予定", "鍵について", "旅行の写真", "会議の時間"),
        (
            "昨日の資料をもう一度確認しました。",
            "電車が遅れたので、少し遅くなります。",
            "週末に庭の木を切るのを手伝ってもらえますか。",
            "母がよろしくと言っていました。",
        ),
    ),
    Language(
        "zh",
        ("gb2312", "utf-8", "gbk"),
        "{name} 你好",
        "明天再谈",
        ("星期六的午餐", "照片在此", "回家的火车"),
        ("我昨天在家里找到了那本书。", "明天可能下雨,我在家里等你。", "火车九点半到,不用接我。"),
    ),
    Language(
        "zh-tw",
        ("big5", "utf-8"),
        "{name} 你好",
        "明天再談",
        ("星期六的午餐", "會議改期", "回家的火車"),
        ("我昨天在家裡找到了那本書。", "明天可能下雨,我在家裡等你。", "火車九點半到,不用接我。"),
    ),
    Language(
        "ko",
        ("euc-kr", "utf-8"),
        "{name} 님 안녕하세요",
        "감사합니다",
        ("토요일 점심", "열쇠 이야기", "여행 사진", "회의 시간 변경"),
        (
            "어제 보내 주신 자료를 잘 읽었습니다.",
            "기차가 늦어서 조금 늦게 도착할 것 같아요.",
            "주말에 같이 산에 갈 수 있을까요?",
        ),
    ),
    Language(
        "he",
        ("windows-1255", "utf-8", "iso-8859-8"),
        "שלום {name},",
        "להתראות",
        ("ארוחת צהריים", "המפתחות של הבית", "תמונות מהטיול"),
        ("אני מגיע ברכבת של שבע.", "הספר נמצא על השולחן בסלון.", "נדבר מחר בבוקר."),
    ),
    Language(
        "ar",
        ("windows-1256", "utf-8", "iso-8859-6"),
        "مرحبا {name}،",
        "مع السلامة",
        ("موعد يوم السبت", "مفاتيح البيت", "صور الرحلة"),
        ("وجدت الكتاب القديم خلف الخزانة.", "سيصل القطار في السابعة مساء.", "أمي تسلم عليك كثيرا."),
    ),
)
