"""The graph of a context as text for Graphviz and as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from lockstitch.observe.context_graph import ContextGraph
from lockstitch.observe.context_pictures import Stitch
from tests.unit.observe.test_context_graph import told

SVG = "{http://www.w3.org/2000/svg}"


def test_text_for_graphviz_has_an_edge_for_each_stitch_and_each_way() -> None:
    text = told(7).dot()
    assert text.count("style=dashed") == 4
    assert '"sent 2.0" -> "received 2.0" [style=dashed color="#b3452c"' in text
    assert '"received 0.0" -> "sent 1.1";' in text
    assert text.count("subgraph") == 3
    assert text.count("{") == text.count("}")


def test_picture_has_an_arrow_for_each_stitch_with_what_it_carries() -> None:
    root = ET.fromstring(told(7).svg())
    arrows = [each for each in root.iter(f"{SVG}path") if each.get("marker-end")]
    titles = [title.text or "" for each in arrows for title in each.iter(f"{SVG}title")]
    assert [each.split(":")[0] for each in titles] == ["0.0", "1.0", "2.0", "1.1"]
    assert titles[2] == "2.0: float32 3, int64 scalar; its gradient is awaited"
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {"worker0", "worker1", "worker2"} <= set(texts)
    assert len([each for each in root.iter(f"{SVG}line") if each.get("class") == "way"]) == 4


def test_what_programs_call_their_workers_does_not_break_the_pictures() -> None:
    odd = ContextGraph(0, ('a"b<c&', "d"), (Stitch("0.0", 'a"b<c&', 'a"b<c&', ("float32 2",) * 5),))
    assert 'label="a\\"b<c&";' in odd.dot()
    root = ET.fromstring(odd.svg())
    assert "float32 2, float32 2, float32 2 and 2 more" in [t.text for t in root.iter(f"{SVG}text")]
