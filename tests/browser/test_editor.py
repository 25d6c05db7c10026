"""The editor of templates in Chromium: the preview follows the text, and runs none of its scripts."""

from __future__ import annotations

import base64

import pytest
from playwright.sync_api import expect

from notifications import editing
from notifications.models import EmailTemplateVersion
from tests.kit.orders import make_order

pytestmark = pytest.mark.django_db(transaction=True)
#: The difference between the brightest and the darkest point of a picture, of at most 765.
CONTRAST = """async (picture) => {
    const image = new Image();
    image.src = `data:image/png;base64,${picture}`;
    await image.decode();
    const size = {width: image.width, height: image.height};
    const canvas = Object.assign(document.createElement("canvas"), size);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const data = context.getImageData(0, 0, image.width, image.height).data;
    let least = 765, most = 0;
    for (let at = 0; at < data.length; at += 4) {
        const sum = data[at] + data[at + 1] + data[at + 2];
        least = Math.min(least, sum);
        most = Math.max(most, sum);
    }
    return most - least;
}"""


def begin() -> str:
    template, _ = editing.begin(source="", event_type="order.paid", locale="", username="ann")
    return f"/admin/notifications/emailtemplate/{template.id}/change/"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (1280, True), (390, True)], ids=str)
def test_an_editor_writes_sees_a_mistake_and_publishes(open_page, width, dark):
    make_order(reference="R-1", name="Ann")
    page = open_page(begin(), width=width, dark=dark)
    expect(page.locator("#preview-subject")).to_have_text("Payment received for your order R-1")
    expect(page.frame_locator("#preview-html").get_by_text("Hello Ann,")).to_be_visible()
    expect(page.locator(".code-subject .lines")).to_have_text("1\n2")

    html = page.get_by_label("HTML")
    html.fill("<h1>Dear {{ name }}</h1>\n<script>parent.document.title = 'evil'</script>\n{{ nmae }}")
    mistake = page.locator("#mistakes li")
    expect(mistake).to_have_text("body.html, line 3: The variable nmae is unknown.")
    mistake.click()
    chosen = "text => text.value.slice(text.selectionStart, text.selectionEnd)"
    assert html.evaluate(chosen) == "{{ nmae }}"

    page.get_by_label("Subject").fill("Thanks, {{ name }}")
    html.fill('{% extends "_layout.html" %}\n{% block message %}<p>Dear {{ name }}</p>{% endblock %}')
    expect(page.locator("#preview-subject")).to_have_text("Thanks, Ann")
    expect(page.frame_locator("#preview-html").get_by_text("Dear Ann")).to_be_visible()
    expect(mistake).to_have_count(0)
    page.locator("#preview-html").scroll_into_view_if_needed()
    picture = page.frame_locator("#preview-html").get_by_text("Dear Ann").screenshot()
    assert page.evaluate(CONTRAST, base64.b64encode(picture).decode()) > 400, "the text can be read"
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0

    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Version 1 is published.")).to_be_visible()
    version = EmailTemplateVersion.objects.get()
    assert (version.subject, version.published_by) == ("Thanks, {{ name }}", "admin")


def test_the_preview_runs_no_script_of_the_draft(open_page, console_errors):
    page = open_page(begin())
    page.get_by_label("HTML").fill("<p>seen</p><script>parent.document.title = 'evil'</script>")
    expect(page.frame_locator("#preview-html").get_by_text("seen")).to_be_visible()
    assert "evil" not in page.title()
    assert console_errors and all("sandboxed" in text for text in console_errors)
    console_errors.clear()
