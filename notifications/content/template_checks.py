"""Render samples of every e-mail when a process starts.

A missing or broken template then stops the process with a clear message. Otherwise it would fail each change
of an order that owes the e-mail. `warm_up` also loads the catalogues and Babel's data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from jinja2 import TemplateSyntaxError, meta, nodes

from notifications.content import sample_orders
from notifications.content.profiles import from_settings
from notifications.content.render_files import PARTS, place_of
from notifications.content.rendering import TemplateFailed, is_currency, localize, render_localized
from notifications.content.sentences import record
from notifications.content.template_files import LAYOUT, environment, event_types, our_folder

_ADDED = frozenset(
    {"lang", "shop_name", "shop_address", "shop_url", "shop_colour", "shop_logo_url", "subject"}
)


def check_templates(*, declared: Collection[str]) -> None:
    """Raise `ImproperlyConfigured` for a template that is missing, misplaced or cannot be rendered.

    Exactly the events `declared` must have templates. A template may use the variables of the samples.
    """
    ours = _files(our_folder())
    if missing := {f"{event}/{part}" for event in declared for part in PARTS} - ours:
        raise ImproperlyConfigured(f"templates/emails lacks {', '.join(sorted(missing))}. Add the file.")
    if unknown := event_types() - set(declared):
        raise ImproperlyConfigured(
            f"templates/emails/{min(unknown)} is not an event with an e-mail."
            f" Use {', '.join(sorted(declared))}."
        )
    theirs = _replacements(ours)
    for name in sorted(ours):
        try:
            environment().get_template(name)
        except (TemplateSyntaxError, UnicodeDecodeError) as error:
            raise ImproperlyConfigured(
                f"The e-mail template {name} does not compile: {error}{place_of(error)}"
            ) from error
    if theirs:
        _check_variables(theirs, ours, next(iter(sample_orders.of(LAYOUT).values())))
    try:
        record(environment())
    except TemplateFailed as failed:
        cause = failed.__cause__
        assert isinstance(cause, Exception)
        why = f"{cause!r}{place_of(cause)}"
        if isinstance(cause, RecursionError):
            why = (
                "a template extends or includes itself. "
                "To extend the file that it replaces, it names orderpost/<file>."
            )
        raise ImproperlyConfigured(f"The e-mail of {failed.event_type} cannot be rendered: {why}") from cause


def warm_up(*, sample: Mapping[str, object]) -> None:
    """Render every e-mail in every language once. The first request need not wait for loading."""
    is_currency("EUR")  # loads the list
    for language, _ in settings.LANGUAGES:
        localized = localize(locale=language, context=sample, profile=from_settings())
        for event_type in event_types():
            render_localized(event_type=event_type, localized=localized)


def _replacements(ours: AbstractSet[str]) -> AbstractSet[str]:
    """Return the names of a shop's own files."""
    if not settings.EMAIL_TEMPLATES_DIR:
        return frozenset()
    folder = Path(settings.EMAIL_TEMPLATES_DIR)
    if not folder.is_dir():
        raise ImproperlyConfigured(f"EMAIL_TEMPLATES_DIR: {folder} is not a folder.")
    theirs = _files(folder)
    if strays := theirs - ours:
        raise ImproperlyConfigured(
            f"EMAIL_TEMPLATES_DIR: {min(strays)} replaces no file. Use the names of files in"
            " templates/emails."
        )
    return theirs


def _check_variables(theirs: AbstractSet[str], ours: AbstractSet[str], sample: Mapping[str, object]) -> None:
    """Raise `ImproperlyConfigured` for an unknown variable in a shop's file, rendered or not."""
    trees = _trees(ours)
    names = _known(trees.values(), sample)
    for name in sorted(theirs):
        if unknown := meta.find_undeclared_variables(trees[name]) - names:
            raise ImproperlyConfigured(
                f"The e-mail template {name} uses the unknown variable {min(unknown)}. "
                "Use those that docs/guides/templates.md lists."
            )


def _trees(ours: AbstractSet[str]) -> Mapping[str, nodes.Template]:
    loader = environment().loader
    assert loader
    return {
        name: environment().parse(loader.get_source(environment(), name)[0])
        for name in [*ours, *(f"orderpost/{name}" for name in ours)]
    }


def _known(trees: Iterable[nodes.Template], sample: Mapping[str, object]) -> AbstractSet[str]:
    # A file may use a name that another one sets, such as `colon` of _layout.txt.
    names = {*sample, *_ADDED}
    for tree in trees:
        names |= {node.name for node in tree.find_all(nodes.Name) if node.ctx == "store"}
        names |= {node.name for node in tree.find_all(nodes.Macro)}
    return names


def _files(folder: Path) -> AbstractSet[str]:
    """Return the names of the files below a folder. Skip hidden ones, which editors and volumes make."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(name) for name in names if not any(part.startswith(".") for part in name.parts)}
