"""Reading compiled programs: the samples are cut from what the compilers print."""

import pytest

from transformer_jax.hlo import parse, read_schedule, trip_count, type_size

LOOPS = """HloModule jit_f, is_scheduled=true

%fused (p.0: f32[8]) -> f32[8] {
  %p.0 = f32[8]{0:T(128)} parameter(0)
  ROOT %tanh = f32[8]{0:T(128)} tanh(%p.0), backend_config={"window_config":{"estimated_cycles":"9999"}}
}

%inner_condition (state.0: (s32[], f32[8])) -> pred[] {
  %ten = s32[]{:T(128)} constant(10)
  %state.0 = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  %index.0 = s32[]{:T(128)} get-tuple-element(%state.0), index=0
  ROOT %lt.0 = pred[]{:T(512)} compare(%index.0, %ten), direction=LT, backend_config={"window_config":{"estimated_cycles":"1"}}
}

%inner_body (state.1: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state.1 = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  %x.1 = f32[8]{0:T(128)} get-tuple-element(%state.1), index=1
  %index.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  %y.1 = f32[8]{0:T(128)} fusion(%x.1), kind=kLoop, calls=%fused, backend_config={"window_config":{"estimated_cycles":"5"}}
  %sum = f32[8]{0:T(128)} all-reduce(%y.1), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %next.1 = (s32[]{:T(128)}, f32[8]{0:T(128)}) tuple(%index.1, %sum)
}

%outer_condition (state.2: (s32[], f32[8])) -> pred[] {
  %state.2 = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  %x.2 = f32[8]{0:T(128)} get-tuple-element(%state.2), index=1
  ROOT %small = pred[]{:T(512)} fusion(%x.2), kind=kLoop, calls=%fused
}

%outer_body (state.3: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state.3 = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  %while.3 = (s32[]{:T(128)}, f32[8]{0:T(128)}) while(%state.3), condition=%inner_condition, body=%inner_body
  ROOT %copy.3 = (s32[]{:T(128)}, f32[8]{0:T(128)}) copy(%while.3), backend_config={"estimated_cycles":"100"}
}

ENTRY %main (x: f32[8]) -> (s32[], f32[8]) {
  %x = f32[8]{0:T(128)} parameter(0), metadata={op_name="x"}
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[8]{0:T(128)}) tuple(%zero, %x)
  %exp = f32[8]{0:T(128)S(1)} exponential(%x), backend_config={"window_config":{"estimated_cycles":"1000"}}
  ROOT %while.4 = (s32[]{:T(128)}, f32[8]{0:T(128)}) while(%start), condition=%outer_condition, body=%outer_body, metadata={op_name="jit(f)/while"}
}
"""  # noqa: E501


def test_bodies_of_loops_count_as_often_as_they_are_run() -> None:
    """10 rounds within 3: 1000 + 3 x (100 + 10 x (5 + 1)); a fusion holds those of its parts."""
    schedule = read_schedule(LOOPS, num_devices=4, open_rounds=[3])
    assert schedule.cycles == 1000 + 3 * (100 + 10 * (5 + 1))
    assert (schedule.loops, schedule.open_loops) == (2, 1)


def test_collectives_count_as_often_as_they_are_run() -> None:
    schedule = read_schedule(LOOPS, num_devices=4, open_rounds=[3])
    assert set(schedule.collectives) == {"all-reduce"}
    one = schedule.collectives["all-reduce"]
    assert (one.count, one.size) == (30, 30 * 32)
    # Two devices: each sends half of the sums, and then half of the results.
    assert one.sent == schedule.sent == 30 * 32


def test_traffic_is_that_of_operands_and_results_in_main_memory() -> None:
    """S(1) is on the chip; `get-tuple-element` and the like move nothing."""
    schedule = read_schedule(LOOPS, num_devices=4, open_rounds=[3])
    condition = 1 + 4 + 4
    body = 2 * 32 + 2 * 32
    outer = 2 * 36 + (1 + 32)
    assert schedule.traffic == 32 + 3 * (outer + 10 * (body + condition))


def test_of_what_is_read_in_parts_only_these_are_traffic() -> None:
    text = """
%layer (table: f32[6,16], index: s32[]) -> f32[1,16] {
  %index = s32[] parameter(1)
  %table = f32[6,16]{1,0} parameter(0)
  ROOT %one = f32[1,16]{1,0} dynamic-slice(%table, %index, %index), dynamic_slice_sizes={1,16}
}

%insert (cache: f32[6,16], new: f32[1,16], where: s32[]) -> f32[6,16] {
  %cache = f32[6,16]{1,0} parameter(0)
  %new = f32[1,16]{1,0} parameter(1)
  %where = s32[] parameter(2)
  ROOT %update = f32[6,16]{1,0} dynamic-update-slice(%cache, %new, %where, %where)
}

ENTRY %main (x: f32[6,16], i: s32[]) -> f32[6,16] {
  %x = f32[6,16]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %y = f32[1,16]{1,0} fusion(%x, %i), kind=kLoop, calls=%layer
  ROOT %z = f32[6,16]{1,0} fusion(%x, %y, %i), kind=kLoop, calls=%insert
}
"""
    read, written = 64 + 4 + 64, 64 + 4 + 64
    assert read_schedule(text, 1, []).traffic == read + written


def test_traffic_of_a_copy_in_two_parts_counts_once() -> None:
    lines = """
  %s = (f32[16]{0:T(128)S(1)}, f32[16]{0:T(128)}, u32[]{:S(2)}) copy-start(%x)
  ROOT %d = f32[16]{0:T(128)S(1)} copy-done(%s)"""
    assert read_schedule(program(lines), 1, []).traffic == 64


def test_trip_counts_are_read_from_the_condition_or_from_the_loop() -> None:
    computations, entry = parse(LOOPS)
    assert entry == "main"
    assert trip_count(computations, computations["outer_body"][1]) == 10
    loop = computations["main"][-1]
    assert trip_count(computations, loop) is None
    known = loop._replace(text=loop.text + ', backend_config={"known_trip_count":{"n":"7"}}')
    assert trip_count(computations, known) == 7


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[2,3]{1,0:T(8,128)}", 24),
        ("(bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, s32[], /*index=2*/pred[4])", 2048 + 4 + 4),
        ("f8e4m3fn[10]", 10),
        ("s4[3]", 2),
        ("u32[0]", 0),
        ("token[]", 0),
    ],
)
def test_sizes_of_types(text: str, size: int) -> None:
    assert type_size(text) == size


def program(lines: str, others: str = "") -> str:
    """Lines as a program, with other computations before it."""
    return f"""
{others}
ENTRY %main (x: f32[16]) -> f32[16] {{
  %x = f32[16] parameter(0)
{lines}
}}
"""


def sent(lines: str, others: str = "") -> dict[str, tuple[int, float, float]]:
    """The collectives of a program on eight devices: count, bytes, bytes sent."""
    found = read_schedule(program(lines, others), 8, []).collectives
    return {kind: (one.count, one.size, one.sent) for kind, one in found.items()}


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("[4,2]<=[8]", 2),
        ("[2,4]<=[4,2]T(1,0)", 4),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", 4),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1'}", 8),
        ("{}", 8),
    ],
)
def test_devices_of_a_collective(groups: str, size: int) -> None:
    line = f"  ROOT %y = f32[64]{{0}} all-gather(%x), replica_groups={groups}, dimensions={{0}}"
    assert sent(line) == {"all-gather": (1, 256, 256 * (size - 1) / size)}


def test_what_each_kind_of_collective_sends() -> None:
    groups = "replica_groups=[2,4]<=[8]"
    assert sent(f"  ROOT %y = f32[4]{{0}} reduce-scatter(%x), {groups}") == {
        "reduce-scatter": (1, 64, 48)
    }
    assert sent(f"  ROOT %y = f32[16]{{0}} all-to-all(%x), {groups}") == {"all-to-all": (1, 64, 48)}
    assert sent(f"  ROOT %y = f32[16]{{0}} all-reduce(%x), {groups}") == {"all-reduce": (1, 64, 96)}


def test_a_collective_in_two_parts_counts_once() -> None:
    lines = """
  %s = (f32[16]{0}, f32[16]{0}, u32[]{:S(2)}) collective-permute-start(%x), channel_id=3, source_target_pairs={{0,1},{1,0}}
  ROOT %d = f32[16]{0} collective-permute-done(%s)"""  # noqa: E501
    assert sent(lines) == {"collective-permute": (1, 64, 64)}


def test_an_all_reduce_that_keeps_a_part_is_a_reduce_scatter() -> None:
    others = """
%all-reduce-scatter.1 (input: f32[16]) -> f32[4] {
  %input = f32[16] parameter(0)
  %all-reduce.1 = f32[16]{0} all-reduce(%input), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %slice = f32[4]{0} dynamic-slice(%all-reduce.1, %input), dynamic_slice_sizes={4}
}"""  # noqa: E501
    line = "  ROOT %y = f32[4]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1"
    assert sent(line, others) == {"reduce-scatter": (1, 64, 48)}


def test_a_collective_behind_other_work_counts_once() -> None:
    """The TPU compiler cuts it into slices: a start, work with a slice each, and an end."""
    gather = (
        "f32[64]{0} all-gather(%p), channel_id=15, replica_groups=[2,4]<=[8], dimensions={0}, "
        'backend_config={"async_collective_fusion_config":{"flag_start":"2"}}'
    )
    others = "\n".join(
        f"""
%{name} (p: f32[16]) -> f32[64] {{
  %p = f32[16] parameter(0)
  %all-gather.{number} = {gather}
  ROOT %r.{number} = f32[64]{{0}} {root}
}}"""
        for number, (name, root) in enumerate(
            [
                ("first", 'custom-call(%all-gather.0), custom_call_target="AsyncCollectiveStart"'),
                ("async_collective_fusion.1", "tuple(%all-gather.1)"),
                ("last", 'custom-call(%all-gather.2), custom_call_target="AsyncCollectiveDone"'),
            ]
        )
    )
    lines = """
  %async-collective-start = f32[64]{0} fusion(%x), kind=kCustom, calls=%first
  %hidden = f32[64]{0} fusion(%x), kind=kOutput, calls=%async_collective_fusion.1
  ROOT %async-collective-done = f32[64]{0} fusion(%x), kind=kCustom, calls=%last"""
    assert sent(lines, others) == {"all-gather": (1, 256, 192)}
