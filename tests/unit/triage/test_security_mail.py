"""Mail about the security of an account or of money is recognised in many languages and however it is dressed up."""

# ruff: noqa: RUF001 - letters of other languages

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.actions import ActionType, parse_action
from postroom.mail.addresses import parse_addresses
from postroom.mail.parsing import parse_mail
from postroom.settings import SafetySettings
from postroom.sim.gmail.server import build
from postroom.triage.choices import ModelChoice
from postroom.triage.prompt import Briefing, MailToJudge
from postroom.triage.safety import decided_by_model
from postroom.triage.signs import security_sign
from tests.support.injections import ORDINARY, RECEIVED

pytestmark = pytest.mark.req("HW-6")

DATA = Path(__file__).parents[3] / "data" / "categories"

TEXTS: dict[str, tuple[str, ...]] = {
    "English": (
        "Your verification code is 493021. It expires in ten minutes.",
        "We noticed a new sign-in to your account from Chrome on Windows.",
        "Someone asked to reset your password. If this wasn't you, ignore this mail.",
        "Suspicious activity was found on your card.",
        "A new device was added to your account.",
        "Use 482 113 as your PIN to log in.",
        "Your two-factor authentication was switched off.",
        "Here is the link to recover your account.",
    ),
    "Spanish": (
        "Tu código de verificación es 384920.",
        "Hemos detectado un nuevo inicio de sesión en tu cuenta.",
        "Haz clic para restablecer tu contraseña.",
        "Alerta de seguridad: actividad sospechosa.",
    ),
    "Portuguese": (
        "Seu código de segurança é 112233.",
        "Clique aqui para redefinir sua senha.",
        "Detectamos um novo dispositivo na sua conta.",
        "Transação suspeita no seu cartão.",
    ),
    "French": (
        "Votre code de vérification : 558210",
        "Réinitialisez votre mot de passe en suivant ce lien.",
        "Nouvelle connexion à votre compte depuis Lyon.",
        "Activité suspecte sur votre carte bancaire.",
    ),
    "German": (
        "Ihr Bestätigungscode lautet 771204.",
        "Hier können Sie Ihr Passwort zurücksetzen.",
        "Neue Anmeldung bei Ihrem Konto.",
        "Verdächtige Aktivität: Ihre Karte wurde gesperrt.",
    ),
    "Italian": (
        "Il tuo codice di verifica è 902113.",
        "Per reimpostare la password premi qui.",
        "Nuovo accesso al tuo account.",
        "Attività sospetta sulla tua carta.",
    ),
    "Dutch": (
        "Je verificatiecode is 660012.",
        "Stel hier je wachtwoord opnieuw in: wachtwoord resetten.",
        "Nieuw apparaat toegevoegd.",
        "Verdachte activiteit op uw rekening.",
    ),
    "Polish": (
        "Twój kod weryfikacyjny to 120944.",
        "Zresetuj hasło do swojego konta.",
        "Nowe logowanie na Twoim koncie.",
        "Podejrzana transakcja kartą.",
    ),
    "Russian": (
        "Ваш код подтверждения: 551203.",
        "Чтобы сбросить пароль, перейдите по ссылке.",
        "Выполнен вход с нового устройства.",
        "Подозрительная операция по карте.",
    ),
    "Ukrainian": (
        "Ваш код підтвердження 118822.",
        "Щоб скинути пароль, натисніть тут.",
        "Новий вхід у ваш обліковий запис.",
        "Підозріла активність.",
    ),
    "Turkish": (
        "Doğrulama kodunuz: 443210.",
        "Şifrenizi sıfırlamak için tıklayın.",
        "Hesabınıza yeni giriş yapıldı.",
        "Şüpheli işlem tespit edildi.",
    ),
    "Indonesian": (
        "Kode verifikasi Anda 221144.",
        "Klik untuk mengatur ulang kata sandi.",
        "Login baru di akun Anda.",
        "Transaksi mencurigakan.",
    ),
    "Vietnamese": (
        "Mã xác minh của bạn là 998123.",
        "Nhấn vào đây để đặt lại mật khẩu.",
        "Đăng nhập mới vào tài khoản.",
        "Hoạt động đáng ngờ.",
    ),
    "Chinese": (
        "您的验证码是 391022,请勿告诉他人。",
        "请点击链接重置密码。",
        "您的账户有新的登录。",
        "我們偵測到可疑活動,請變更密碼。",
    ),
    "Japanese": (
        "認証コードは 113355 です。",
        "パスワードの再設定はこちらから。",
        "新しい端末からログインがありました。",
        "不審な取引がありました。",
    ),
    "Korean": (
        "인증번호는 120934 입니다.",
        "비밀번호 재설정 링크입니다.",
        "새로운 기기에서 로그인했습니다.",
        "의심스러운 활동이 감지되었습니다.",
    ),
    "Arabic": (
        "رمز التحقق الخاص بك هو 482910",
        "اضغط لإعادة تعيين كلمة المرور",
        "تسجيل دخول جديد إلى حسابك",
        "تم رصد نشاط مشبوه",
    ),
    "Hindi": (
        "आपका सत्यापन कोड 482910 है",
        "पासवर्ड रीसेट करने के लिए यहाँ दबाएँ",
        "नए डिवाइस से लॉगिन हुआ",
        "आपके खाते में संदिग्ध गतिविधि",
    ),
    "Thai": ("รหัสยืนยันของคุณคือ 482910", "กดที่นี่เพื่อรีเซ็ตรหัสผ่าน", "พบกิจกรรมที่น่าสงสัย"),
    "Swedish": ("Din verifieringskod är 482910.", "Återställ ditt lösenord här.", "Ny inloggning på ditt konto."),
    "Danish": ("Din bekræftelseskode er 482910.", "Nulstil din adgangskode her.", "Mistænkelig aktivitet."),
    "Norwegian": ("Bekreftelseskode: 482910.", "Tilbakestill passord her.", "Ny pålogging fra en ukjent enhet."),
    "Finnish": ("Vahvistuskoodisi on 482910.", "Nollaa salasanasi tästä.", "Uusi kirjautuminen tilillesi."),
    "Czech": ("Váš ověřovací kód je 482910.", "Obnovení hesla k účtu.", "Nové přihlášení z neznámého zařízení."),
    "Hungarian": ("Az ellenőrző kód: 482910.", "Jelszó visszaállítása.", "Új bejelentkezés a fiókjába."),
    "Romanian": ("Codul de verificare este 482910.", "Resetarea parolei contului.", "Activitate suspectă."),
    "Greek": ("Ο κωδικός επαλήθευσης είναι 482910.", "Επαναφορά κωδικού πρόσβασης.", "Νέα σύνδεση στον λογαριασμό."),
    "Croatian": ("Vaš sigurnosni kod je 482910.", "Ponovno postavljanje lozinke.", "Nova prijava s novog uređaja."),
    "Hebrew": ("קוד האימות: קוד אימות 482910", "איפוס סיסמה לחשבון שלך", "זוהתה פעילות חשודה"),
    "Persian": ("کد تأیید شما ۴۸۲۹۱۰ است", "بازنشانی رمز عبور", "فعالیت مشکوک در حساب شما"),
}
SUBJECTS = (
    "G-482910 is your Google verification code",
    "482910 is your code",
    "Security alert",
    "New login from Zagreb",
    "Your card ending 1881: 90.00 EUR at a petrol station",
    "Direct debit could not be collected",
    "Wichtige Information zu Ihrem Passwort",
    "Mot de passe modifié",
    "安全提醒",
)
SENDERS = (
    ("no-reply@accountprotection.example", None),
    ("alerts@somewhere.example", None),
    ("service@northbank.example", None),
    ("hello@brand.example", "Brand Security"),
    ("info@sparkasse-zell.example", None),
)


def sign(text: str = "Hello", subject: str = "A letter", sender: str = "ann@example.org") -> str | None:
    return security_sign(sender, "Ann", subject, text)


@pytest.mark.parametrize("language", TEXTS)
def test_security_mail_is_recognised_in_many_languages_in_text_and_subject(language: str) -> None:
    for text in TEXTS[language]:
        assert sign(text), text
        assert sign(f"Dear customer,\n\n{text}\n\nThe team"), text
        assert sign(subject=text), text


def test_subjects_senders_and_headers_are_enough() -> None:
    for subject in SUBJECTS:
        assert sign(subject=subject), subject
    for address, name in SENDERS:
        assert security_sign(address, name, "Hello", "Hello"), address
    assert security_sign("a@b.example", None, "Hello", "Hello", {"X-Mailgun-Tag": "password-reset"})
    assert security_sign("a@b.example", None, None, "", {"Feedback-ID": "12:login-code:brand"})


def _small_capitals(text: str) -> str:
    return text.lower().translate(str.maketrans("abcdefghijklmnoprstuvwyz", "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ"))


def _shifted(text: str, first: int) -> str:
    return "".join(chr(first + ord(char) - 97) if "a" <= char <= "z" else char for char in text.lower())


DISGUISES: dict[str, Callable[[str], str]] = {
    "capitals": str.upper,
    "full width": lambda text: _shifted(text, 0xFF41),
    "small capitals": _small_capitals,
    "bold mathematics": lambda text: _shifted(text, 0x1D41A),
    "white on black": lambda text: _shifted(text, 0x1F170),
    "zero width": lambda text: "\u200b".join(text),
    "joiners": lambda text: "\u034f\u2060".join(text),
    "soft hyphens": lambda text: "\u00ad".join(text),
    "Cyrillic look-alikes": lambda text: text.translate(str.maketrans("aeopc", "аеорс")),
    "accents": lambda text: "".join(char + "\u0301" if char in "aeiou" else char for char in text),
    "newlines between words": lambda text: text.replace(" ", "\r\n\t"),
    "no-break blanks": lambda text: text.replace(" ", "\u00a0"),
    "marks between words": lambda text: text.replace(" ", " * "),
    "padding before it": lambda text: "\u034f \u200c " * 9_000 + text,
    "letters apart": lambda text: "  ".join(" ".join(word) for word in text.split()),
}


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("text", ["reset your password here", "your verification code", "suspicious activity on it"])
def test_it_is_recognised_however_it_is_dressed_up(disguise: str, text: str) -> None:
    assert sign(DISGUISES[disguise](text)), disguise


def test_chinese_broken_across_lines_is_read_as_one_word() -> None:
    assert sign("您的验\n证码 是 391022")


HARMLESS = (
    "Lunch on Friday at noon? The new place on the corner has a table for six.",
    "Spring sale: 30 % off with the code SPRING until Sunday.",
    "The tango class moves to Tuesday; bring shoes.",
    "Minutes of the committee, with the budget of 2026 attached.",
    "Ihre Bestellung 40231 wurde versandt und kommt am Dienstag.",
    "Merci pour votre commande, elle arrivera jeudi.",
    "Спасибо за заказ! Доставка завтра.",
    "ご注文ありがとうございます。明日お届けします。",
    "您好,附件是会议记录。",
)


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_mail_is_not_called_security_mail(text: str) -> None:
    assert sign(text) is None


def test_few_of_an_ordinary_mailbox_are_asked_about() -> None:
    """Of the stand-in's mailbox: most of those asked about come from a bank. Seen: 6 in a hundred."""
    source, count = build(400, seed=11), 400
    found = 0
    for index in range(count):
        mail = parse_mail(source.raw(index))
        sender = mail.from_[0] if mail.from_ else None
        name = sender.display_name if sender else None
        found += bool(security_sign(sender.canonical if sender else "", name, mail.subject, mail.best_text))
    assert found / count <= 0.08
    assert [name for name, text in ORDINARY.items() if sign(text)] == ["a password reset"]


def test_the_model_alone_hides_neither_security_mail_nor_mail_of_contacts() -> None:
    reset = MailToJudge("no-reply@shop.example", None, "Reset your password", "Hello", RECEIVED, {}, (), ())
    letter = MailToJudge("ann@example.org", "Ann", "Lunch", "Friday?", RECEIVED, {}, (), ())
    for name in ("archive", "mark_read", "trash", "unstar"):
        choice = ModelChoice(parse_action(name), 1.0, "As told.")
        careless = SafetySettings(dangerous_actions="")
        [asked] = decided_by_model(choice, reset, Briefing(), careless).actions
        assert any("never hides this" in reason for reason in asked.reasons), name
        assert not decided_by_model(choice, letter, Briefing(), careless).reasons
        [asked] = decided_by_model(choice, letter, Briefing(), careless, contacts=("ann@example.org",)).actions
        assert any("ann@example.org is a contact of yours" in reason for reason in asked.reasons), name
    marks = ModelChoice(parse_action(ActionType.STAR), 1.0, "Important.")
    assert not decided_by_model(marks, reset, Briefing(), SafetySettings(), contacts=("ann@example.org",)).reasons


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.text(max_size=400), st.text(max_size=400), st.text(max_size=80))
def test_any_text_at_all_can_be_looked_at(text: str, subject: str, sender: str) -> None:
    security_sign(sender, subject, subject, text, {subject: text})


@pytest.mark.parametrize("text", ["code 1 ", "code aaaa ", "\u200b\u0301a", "验 ", "1234 "])
def test_it_takes_time_in_proportion_to_the_text_and_not_more(text: str) -> None:
    def seconds(size: int) -> float:
        began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        security_sign("a@b.example", None, text * 100, text * (size // len(text)))
        return resource.getrusage(resource.RUSAGE_SELF).ru_utime - began

    seconds(1_000)
    assert seconds(2_000_000) < 1.0


@pytest.mark.req("HW-6")
def test_nearly_all_security_mail_of_senders_nobody_has_listed_is_recognised_by_its_headers_alone() -> None:
    """A hundred records in 26 languages, from senders that neither the phrases nor the categories' data name."""
    lines = (Path(__file__).parent / "security_mail.tsv").read_text("utf-8").splitlines()
    trained = "".join(path.read_text("utf-8") for path in sorted(DATA.glob("*.tsv")))
    missed = []
    for line in lines:
        _, sender, subject = line.split("\t")
        first = parse_addresses(sender)[0]
        assert first.domain not in trained
        if security_sign(first.address, first.display_name, subject, "") is None:
            missed.append(line)
    assert len(lines) >= 100
    assert len(missed) <= len(lines) * 0.05, missed
