"""Questions with known answers over SpamAssassin's public corpus: our own sentences, each with the Message-ID of the
message that answers it. They were written from the beginnings of messages drawn by chance, and
mostly avoid the words of the subject.
"""

from __future__ import annotations

QUESTIONS: tuple[tuple[str, str], ...] = (
    (
        "which jokes do musicians tell about conductors and viola players?",
        "Pine.LNX.4.44.0207241023140.3214-100000@localhost.localdomain",
    ),
    ("who paid for an operating system to be translated into Basque?", "1028293950.4603.6.camel@foleys"),
    (
        "apt source package fails to compile on the limbo beta because header files are missing",
        "20020816.utj.20032800@www.dudex.net",
    ),
    ("which program has to escape lines that start with From in a mailbox file?", "8425.1034188200@dimebox.bmc.com"),
    (
        "are boot floppies cheaper and easier than booting over the network?",
        "5.1.1.6.0.20020806133046.026b8b88@mail.elivefree.net",
    ),
    ("ignore the Habeas mark in mail that passed through China", "200208281749.37636.matt@nightrealms.com"),
    (
        "carrying a ukulele on a plane and someone checking in a huge bass case",
        "200210090800.g9980ZK25191@dogma.slashnull.org",
    ),
    (
        "a five year old girl got a hand-me-down music player whose batteries fell out",
        "Pine.BSO.4.44.0209050036160.9755-100000@crank.slack.net",
    ),
    (
        "package manager refuses to work because of failed dependencies in the database",
        "1012620964.5580.5.camel@localhost.localdomain",
    ),
    ("how do I connect a laptop without cables to my home network hub?", "20020816211926.GB1412@rfitzsimons"),
    ("contest entry for a robot dog made by biotechnology", "200209250803.g8P83jC18360@dogma.slashnull.org"),
    ("explanation why an array of pointers to char is 4096 bytes large", "20021125152837.A12813@zork.org"),
    ("refilling green coolant and watching Japanese cartoons", "3D72A81A.1010901@barrera.org"),
    (
        "awk function with a lookup table that decodes percent escapes in addresses",
        "Pine.LNX.4.44.0208272128390.3982-100000@fogarty.jakma.org",
    ),
    ("who was offered a role as a gangster in a film shot in Prague?", "001201c299a3$3a603de0$1e8227d9@b5w3e9"),
    ("Apple music player louder than the law allows in France", "200210020801.g92817K31706@dogma.slashnull.org"),
    ("where in Toronto can you eat anything other than doughnuts?", "m265xu53bz.fsf@maya.dyndns.org"),
    ("heavy metal band that sings about science fiction writers", "200210020801.g92815K31702@dogma.slashnull.org"),
    (
        "the download page does not say that these are development versions, it is misleading",
        "00d301c2332f$1ca59b90$b554a8c0@RAGING",
    ),
    ("how much did the aluminium computer housing from Lian-Li cost?", "OFEGLPGPCHPACFLJPAILEEBPEBAA.macarthy@iol.ie"),
    ("water from a broken pipe flooding the floor while away on holiday", "F125LQfXv4sPLufvdLa000181fb@hotmail.com"),
    (
        "someone who would like to live in Vancouver but his wife hates the cold",
        "F29ySsxVY60mJWEsBk30000ddb3@hotmail.com",
    ),
    ("leftover variable name causes a traceback when using link in exmh", "5305.1031637136@munnari.OZ.AU"),
    ("is there a limit of requests per minute on the spam checking servers?", "20020731193146.B17700@rover.vipul.net"),
    (
        "should faster disk transfer be switched on for optical drives with VIA chipsets?",
        "20021007194559.0482f194.matthias@rpmforge.net",
    ),
    (
        "install the movie player and everything it depends on with one command",
        "20021004221003.26248bb9.kilroy@kamakiriad.com",
    ),
    (
        "small investors lose while insiders cash out before the company collapses",
        "Pine.LNX.4.33.0207291338560.25279-100000@watcher.mithral.com",
    ),
    ("how can I decode the encoded part of a message by hand?", "15743.18150.567462.560748@onceler.kciLink.com"),
    (
        "swap cables and hub ports to find out why machines cannot reach the server",
        "1028403944.3d4c32e8a44c7@webmail.gameshrine.com",
    ),
    ("where are packages of the nethack game with graphics for Red Hat 7.3?", "1027977442.1921.5.camel@bobcat.ods.org"),
    (
        "losing trust in a checksum clearinghouse because honest organisations are listed in it",
        "1031783038.19376.TMDA@omega.paradigm-omega.net",
    ),
    (
        "clicking the folder label no longer returns to the whole list after picking messages",
        "200208010450.AAA07420@blackcomb.panasas.com",
    ),
    (
        "are there examples of junk mail that got a good score from the bonded sender list?",
        "20021004015119.C89A0A87F0@belphegore.hughes-family.org",
    ),
    ("meeting former fiancées who became famous authors", "007f01c299a1$aff74f00$0a8d1918@nycap.rr.com"),
    (
        "flash and java class files are worth compressing too",
        "Pine.LNX.4.44.0207282031090.14923-100000@fogarty.jakma.org",
    ),
    ("what is new at the foundation of the Perl programming language in autumn?", "E17zSZ8-0004iB-01@cpu59.osdn.com"),
    ("a terminal program for Windows that can log in through a web proxy", "20020727140613.GA32647@skynet.ie"),
    ("Germans who dress up as aliens from Star Trek", "008f01c2999a$2ff083a0$d44a9a40@oemcomputer"),
    (
        "reporting from a spam trap with procmail fails now and then with an error",
        "D79A56AD131896448D0860DEE07CBE1F3BADEB@med-core07.med.wayne.edu",
    ),
    (
        "at what time do we meet in the pub on Capel street?",
        "0D443C91DCE9CD40B1C795BA222A729E0188560F@milexc01.maxtor.com",
    ),
    (
        "protected films from the rental shop no longer play since the last update",
        "200208132145.51754.nick@permflux.org",
    ),
    (
        "restore a clean system after an intrusion by starting from a disc that cannot be written",
        "3D76977B.9010606@wirex.com",
    ),
    ("debugging embedded software of petrol pumps", "20020808115436.GB25561@skynet.ie"),
    ("show the largest files first without reading the whole sorted list", "20020828085355.A12976@wanadoo.fr"),
    ("how long must an RSA number be compared to elliptic curves?", "20020820162444.D69E3C44E@argote.ch"),
    ("groups that fight junk mail should stop quarrelling with each other", "v64re4kes8.fsf@kechara.flame.org"),
    (
        "cheaper phone calls abroad offered by an airline",
        "LISTMANAGER-949326-32914-2002.08.30-17.47.31--zzzz-ryanair#spamassassin.taint.org@mail.ryanairmail.com",
    ),
    ("a woman fined for leaving her car where no sign forbade it", "003c01c26d7b$b82ac190$0200a8c0@JMHALL"),
    (
        "which kernel option enables the journalling flash file system?",
        "200208061339.g76Dd4fE009771@sionnach.ireland.sun.com",
    ),
    ("how to behave as a guest when two people get married", "200210010800.g91806K15328@dogma.slashnull.org"),
    ("impressed by the monuments in Washington and the words of Jefferson", "p04320413b96626403b5b@[153.32.62.150]"),
    (
        "advertisers can defeat text filters by sending only a picture",
        "752D46E7E674D311842600A0C9EC627A03EAABA8@rockford",
    ),
    ("warning that my letter could not be delivered for four hours", "20020724040006.0A43B3F78@kci.kciLink.com"),
    (
        "unique copy protection for each download, for a hospital rather than for teenagers",
        "200209040652.07546.ygingras@ygingras.net",
    ),
    ("are noisy protests meant to get on television?", "3D89F216.1000807@permafrost.net"),
    ("ideas wanted for banners in file sharing programs", "200209250803.g8P83kC18372@dogma.slashnull.org"),
    ("handheld phone for writing web diaries while travelling", "200210030801.g93818K19981@dogma.slashnull.org"),
    ("which scripting language suits computer games, instead of C++?", "200210070800.g9780gK23266@dogma.slashnull.org"),
    (
        "people who write sloppy English with abbreviations lose my respect",
        "200209300801.g8U81ng21379@dogma.slashnull.org",
    ),
    (
        "you have to take the keyboard apart to silence a Sun workstation",
        "8324AAE75AAF234DB122E30557EEC9DC014C0098@corpeumx6.corp.emc.com",
    ),
    ("coffee shop chain gets wireless internet in Boston", "20020815213504.GO2724@pallas.fsck.com"),
    (
        "answer the first delivery attempt with a temporary error, because bulk senders never retry",
        "B9A6AE92.91AD%opslag@inklaar.net",
    ),
    ("Sony stops making the video recorders that lost against VHS", "31C6D68FA597D411B04D00E02965883BD239FD@mailhost"),
    ("read office documents on a Palm without owning a Windows machine", "20020829171046.AAB1816@cas.org"),
    (
        "which module must be loaded for the graphics card before the display server works?",
        "001b01c24a76$315c63d0$e600000a@XENON16",
    ),
    ("reading the brains of airline passengers to find terrorists", "4.3.2.7.2.20020817003903.0215d3e0@mailsj-v1"),
    (
        "tokens from content type and character set lowered the missed spam",
        "LNBBLJKPBEHFEDALKOLCEEIEBCAB.tim.one@comcast.net",
    ),
    (
        "a language that breaks on different virtual machines, and compiling it to native binaries",
        "200209020319.13260.eh@mad.scientist.com",
    ),
    ("where can a novice programmer ask about C by mail?", "200207311043.g6VAhuq10699@cdm01.deedsmiscentral.net"),
    ("sending data through the human body between handheld devices", "200210080800.g9880XK06083@dogma.slashnull.org"),
    ("writer blocks forever because no one opened the fifo for reading", "200207311559.g6VFxhX09665@linux.local"),
    ("how does a form pass several values of the same name to a PHP script?", "3D612ACA.4050100@heanet.ie"),
    ("messages moved out of the inbox end up in the wrong order", "200209091921.g89JLgt02406@lin12.triumf.ca"),
)
