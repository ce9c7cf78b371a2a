"""Conversations: friends, lists, a practice or a travel desk that answers. Every message is a function of the story."""

from __future__ import annotations

from dataclasses import dataclass

from postroom.gmail.sim.mailbox.cast import Cast
from postroom.gmail.sim.mailbox.dice import Dice, derive, weighted
from postroom.gmail.sim.mailbox.languages import ENGLISH, Language
from postroom.gmail.sim.mailbox.letters import Category, Letter, Style, document
from postroom.gmail.sim.mailbox.organisations import LISTS
from postroom.gmail.sim.mailbox.party import Party

_KINDS = weighted(
    ((Category.RELATIONSHIP, 74), (Category.LIST, 16), (Category.HEALTH, 5), (Category.TRAVEL, 5)),
)
_CARE_SUBJECTS = (
    *("Moving my appointment", "Question about the prescription", "Referral letter", "Before the check-up"),
    *("The new glasses", "Form for the school"),
)
_TRIP_SUBJECTS = ("Late arrival at your hotel", "Changing our booking", "A cot in the room?", "Refund for the ferry")
_LIST_SUBJECTS = ("Water butts", "Breaking change in the parser?", "Parking on our street", "Which mass at Easter?")


@dataclass(frozen=True, slots=True)
class Story:
    """What all messages of a thread share."""

    category: Category
    partner: Party
    subject: str
    language: Language
    owner_starts: bool
    others: tuple[Party, ...]
    list_name: str
    list_id: str
    key: int


def story_of(key: int, cast: Cast) -> Story:
    dice = Dice(key)
    category = dice.pick(_KINDS)
    owner_starts = dice.chance(450)
    list_name, list_id = dice.pick(LISTS) if category is Category.LIST else ("", "")
    match category:
        case Category.LIST:
            partner, subject = cast.stranger(dice), f"[{list_name}] {dice.pick(_LIST_SUBJECTS)}"
        case Category.HEALTH:
            partner, subject = dice.pick(cast.health), dice.pick(_CARE_SUBJECTS)
        case Category.TRAVEL:
            partner, subject = dice.pick(cast.travel), dice.pick(_TRIP_SUBJECTS)
        case _:
            partner = cast.contact(dice)
            subject = dice.pick(partner.language.subjects)
    language = ENGLISH if category is Category.LIST else partner.language
    several = category is Category.RELATIONSHIP and dice.chance(200)
    others = tuple(dice.sample(cast.contacts, dice.between(1, 3))) if several else ()
    return Story(category, partner, subject, language, owner_starts, others, list_name, list_id, key)


def speaker(story: Story, position: int, cast: Cast) -> Party:
    """Who wrote the message at this position of the thread."""
    if story.category is not Category.LIST:
        return cast.owner if (position % 2 == 0) == story.owner_starts else story.partner
    dice = Dice(derive(story.key, position))
    if dice.chance(250):
        return cast.owner
    return story.partner if position == 0 else dice.pick((story.partner, cast.stranger(dice), cast.contact(dice)))


def letter_of(story: Story, position: int, cast: Cast, dice: Dice) -> Letter:
    sender = speaker(story, position, cast)
    is_list = story.category is Category.LIST
    address = story.list_id.replace(".", "@", 1)
    listed = Party(story.list_name, address)
    from_owner = sender is cast.owner
    to = listed if is_list else story.partner if from_owner else cast.owner
    return Letter(
        story.category,
        sender,
        (to,),
        f"Re: {story.subject}" if position else story.subject,
        cc=story.others,
        language=story.language,
        personal=True,
        paragraphs=dice.between(1, 3),
        style=Style.PLAIN if is_list or dice.chance(350) else Style.ALTERNATIVE,
        files=(document(dice),) if not is_list and dice.chance(90) else (),
        sent=from_owner,
        list_id=f"{story.list_name} <{story.list_id}>" if is_list and not from_owner else "",
        unsubscribe=f"<mailto:{address.replace('@', '-leave@')}>" if is_list and not from_owner else "",
        precedence="list" if is_list and not from_owner else "",
    )
