# SPDX-License-Identifier: Apache-2.0
"""Values of public columns as they are written: text with missing values, and dates and times as
numbers of seconds."""

import pyarrow as pa
import pyarrow.compute as pc

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
_TEXT = pa.large_string()
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# ISO 8601 without and with an offset
_WRITTEN_TIMES = (pa.timestamp("us"), pa.timestamp("us", "UTC"))


def text_of(column: pa.Array) -> pa.Array:
    """Cast to text, strip spaces, and set missing values to null."""
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    trimmed = pc.utf8_trim_whitespace(plain.cast(_TEXT))
    return pc.if_else(
        pc.is_in(trimmed, value_set=pa.array(MISSING, _TEXT)), pa.scalar(None, _TEXT), trimmed
    )


def written_times(text: pa.Array) -> pa.Array:
    """Read text of `text_of` as times, all with an offset or all without; ArrowInvalid if some
    value is no date or time of ISO 8601."""
    try:
        return text.cast(_WRITTEN_TIMES[0])
    except pa.ArrowInvalid:
        return text.cast(_WRITTEN_TIMES[1])


def is_time(kind: pa.DataType) -> bool:
    """Tell whether a type is that of dates, timestamps, times of day or durations."""
    types = pa.types
    return bool(
        types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_time(kind)
        or types.is_duration(kind)
    )


def ticks_of(times: pa.Array) -> pa.Array:
    """Return times as float64 in the units of their type, null if missing."""
    # Arrow casts a temporal type to an integer only of the same width, and to no float.
    return times.cast(pa.int32() if times.type.bit_width == 32 else pa.int64()).cast(
        pa.float64(), safe=False
    )


def seconds_of(times: pa.Array) -> pa.Array:
    """Return dates (their midnight in UTC) and timestamps since 1970, times of day or durations as
    seconds: float64, null if missing."""
    kind, ticks = times.type, ticks_of(times)
    if pa.types.is_date32(kind):
        return pc.multiply(ticks, 86_400.0)
    return pc.divide(ticks, float(_PER_SECOND["ms" if pa.types.is_date64(kind) else kind.unit]))
