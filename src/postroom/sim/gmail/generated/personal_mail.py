"""Conversations, other single messages (spam, strangers, invitations, notes), and how often each kind comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from postroom.sim.gmail.generated import company_mail
from postroom.sim.gmail.generated.correspondents import LISTS, Correspondent, Correspondents
from postroom.sim.gmail.generated.drafting import GeneratedCategory, LetterDraft, LetterStyle, code, document
from postroom.sim.gmail.generated.languages import ENGLISH, Language
from postroom.sim.gmail.generated.seeded_random import SeededRandom, derive, weighted

_KINDS = weighted(
    (
        (GeneratedCategory.RELATIONSHIP, 74),
        (GeneratedCategory.LIST, 16),
        (GeneratedCategory.HEALTH, 5),
        (GeneratedCategory.TRAVEL, 5),
    ),
)
_CARE_SUBJECTS = (
    *("Moving my appointment", "Question about the prescription", "Referral letter", "Before the check-up"),
    *("The new glasses", "Form for the school"),
)
_TRIP_SUBJECTS = ("Late arrival at your hotel", "Changing our booking", "A cot in the room?", "Refund for the ferry")
_LIST_SUBJECTS = ("Water butts", "Breaking change in the parser?", "Parking on our street", "Which mass at Easter?")


@dataclass(frozen=True, slots=True)
class ConversationStory:
    """What all messages of a thread share."""

    category: GeneratedCategory
    partner: Correspondent
    subject: str
    language: Language
    owner_starts: bool
    others: tuple[Correspondent, ...]
    list_name: str
    list_id: str
    key: int


def story_of(key: int, cast: Correspondents) -> ConversationStory:
    dice = SeededRandom(key)
    category = dice.pick(_KINDS)
    owner_starts = dice.chance(450)
    list_name, list_id = dice.pick(LISTS) if category is GeneratedCategory.LIST else ("", "")
    match category:
        case GeneratedCategory.LIST:
            partner, subject = cast.stranger(dice), f"[{list_name}] {dice.pick(_LIST_SUBJECTS)}"
        case GeneratedCategory.HEALTH:
            partner, subject = dice.pick(cast.health), dice.pick(_CARE_SUBJECTS)
        case GeneratedCategory.TRAVEL:
            partner, subject = dice.pick(cast.travel), dice.pick(_TRIP_SUBJECTS)
        case _:
            partner = cast.contact(dice)
            subject = dice.pick(partner.language.subjects)
    language = ENGLISH if category is GeneratedCategory.LIST else partner.language
    several = category is GeneratedCategory.RELATIONSHIP and dice.chance(200)
    others = tuple(dice.sample(cast.contacts, dice.between(1, 3))) if several else ()
    return ConversationStory(category, partner, subject, language, owner_starts, others, list_name, list_id, key)


def speaker(story: ConversationStory, position: int, cast: Correspondents) -> Correspondent:
    """Who wrote the message at this position of the thread."""
    if story.category is not GeneratedCategory.LIST:
        return cast.owner if (position % 2 == 0) == story.owner_starts else story.partner
    dice = SeededRandom(derive(story.key, position))
    if dice.chance(250):
        return cast.owner
    return story.partner if position == 0 else dice.pick((story.partner, cast.stranger(dice), cast.contact(dice)))


def letter_of(story: ConversationStory, position: int, cast: Correspondents, dice: SeededRandom) -> LetterDraft:
    sender = speaker(story, position, cast)
    is_list = story.category is GeneratedCategory.LIST
    address = story.list_id.replace(".", "@", 1)
    listed = Correspondent(story.list_name, address)
    from_owner = sender is cast.owner
    to = listed if is_list else story.partner if from_owner else cast.owner
    return LetterDraft(
        story.category,
        sender,
        (to,),
        f"Re: {story.subject}" if position else story.subject,
        cc=story.others,
        language=story.language,
        personal=True,
        paragraphs=dice.between(1, 3),
        style=LetterStyle.PLAIN if is_list or dice.chance(350) else LetterStyle.ALTERNATIVE,
        files=(document(dice),) if not is_list and dice.chance(90) else (),
        sent=from_owner,
        list_id=f"{story.list_name} <{story.list_id}>" if is_list and not from_owner else "",
        unsubscribe=f"<mailto:{address.replace('@', '-leave@')}>" if is_list and not from_owner else "",
        precedence="list" if is_list and not from_owner else "",
    )


_ANNOUNCEMENTS = ("Minutes of the meeting", "Release 0.9", "Date for the summer party", "Call for help")


def bounce(dice: SeededRandom, cast: Correspondents) -> LetterDraft:
    return LetterDraft(
        GeneratedCategory.NOTIFICATION,
        Correspondent("Mail Delivery Subsystem", f"mailer-daemon@{cast.owner.domain}"),
        (cast.owner,),
        "Delivery Status Notification (Failure)",
        facts=(f"Your message to nobody{dice.below(100)}@gone.example could not be delivered.",),
        bounce=True,
        auto_submitted="auto-replied",
    )


def spam(dice: SeededRandom, cast: Correspondents) -> LetterDraft:
    subject = dice.pick(
        (
            "Your account is suspended!!!",
            "You have won 850,000 EUR",
            "Re: unpaid invoice",
            "Cheap watches, best quality",
            "Urgent business proposal",
            "Вы выиграли приз",
            "100% gratis für Sie",
        )
    )
    forged = dice.chance(350)
    # A forger borrows a name that the owner trusts: a bank, a clinic, or a friend.
    sender = (
        dice.pick((dice.pick(cast.banks), dice.pick(cast.health), cast.contact(dice))) if forged else _spammer(dice)
    )
    return LetterDraft(
        GeneratedCategory.SPAM,
        sender,
        (cast.owner,),
        subject,
        facts=(f"Click here: http://{code(dice, 8).lower()}.example/win",),
        style=dice.pick((LetterStyle.HTML, LetterStyle.PLAIN)),
        files=(document(dice),) if dice.chance(100) else (),
        forged=forged,
        reply_to=f"{code(dice, 8).lower()}@drop.example" if dice.chance(500) else "",
    )


def _spammer(dice: SeededRandom) -> Correspondent:
    name = dice.pick(("Prize Office", "Mrs. Grace Wills", "Support Team", "W A T C H E S", ""))
    return Correspondent(name, f"{code(dice, 7).lower()}@{code(dice, 9).lower()}.example")


def from_a_stranger(dice: SeededRandom, cast: Correspondents) -> LetterDraft:
    sender = cast.stranger(dice)
    language = sender.language
    return LetterDraft(
        GeneratedCategory.RELATIONSHIP,
        sender,
        (cast.owner,),
        dice.pick(language.subjects),
        language=language,
        personal=True,
        paragraphs=dice.between(1, 3),
        style=dice.pick((LetterStyle.PLAIN, LetterStyle.ALTERNATIVE)),
        files=(document(dice),) if dice.chance(120) else (),
    )


def to_a_contact(dice: SeededRandom, cast: Correspondents) -> LetterDraft:
    """A message of the owner's without an answer."""
    friend = cast.contact(dice)
    return LetterDraft(
        GeneratedCategory.RELATIONSHIP,
        cast.owner,
        (friend,),
        dice.pick(friend.language.subjects),
        language=friend.language,
        personal=True,
        paragraphs=dice.between(1, 3),
        files=(document(dice),) if dice.chance(200) else (),
        sent=True,
    )


def note_to_self(dice: SeededRandom, cast: Correspondents) -> LetterDraft:
    subject = dice.pick(("note", "Remember", "Shopping list", "Wifi password for the cabin", "Idea"))
    return LetterDraft(GeneratedCategory.PERSONAL, cast.owner, (cast.owner,), subject, sent=True, paragraphs=1)


def invitation(dice: SeededRandom, cast: Correspondents) -> LetterDraft:
    friend = cast.contact(dice)
    topic = dice.pick(friend.language.subjects)
    return LetterDraft(
        GeneratedCategory.RELATIONSHIP,
        friend,
        (cast.owner,),
        f"Invitation: {topic}",
        cc=tuple(dice.sample(cast.contacts, dice.below(3))),
        language=friend.language,
        invitation=True,
        style=LetterStyle.ALTERNATIVE,
    )


def list_announcement(dice: SeededRandom, cast: Correspondents) -> LetterDraft:
    name, list_id = dice.pick(LISTS)
    address = list_id.replace(".", "@", 1)
    return LetterDraft(
        GeneratedCategory.LIST,
        cast.stranger(dice),
        (Correspondent(name, address),),
        f"[{name}] {dice.pick(_ANNOUNCEMENTS)}",
        paragraphs=dice.between(1, 4),
        list_id=f"{name} <{list_id}>",
        unsubscribe=f"<mailto:{address.replace('@', '-leave@')}>",
        precedence="list",
    )


LetterKind = Callable[[SeededRandom, Correspondents], LetterDraft]

KINDS: tuple[LetterKind, ...] = weighted(
    (
        (company_mail.newsletter, 34),
        (company_mail.promotion, 30),
        (company_mail.notification, 20),
        (company_mail.local_business, 2),
        (company_mail.social, 18),
        (company_mail.receipt, 17),
        (company_mail.bill_of_a_person, 1),
        (company_mail.bank, 14),
        (spam, 15),
        (company_mail.travel, 10),
        (company_mail.health, 8),
        (list_announcement, 8),
        (from_a_stranger, 6),
        (to_a_contact, 6),
        (invitation, 5),
        (note_to_self, 3),
        (bounce, 2),
    )
)
