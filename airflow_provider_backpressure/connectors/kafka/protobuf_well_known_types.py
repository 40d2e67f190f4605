"""Files that Protobuf schemas import without a reference, as registries know them: those of Google and Confluent."""

_PROTOBUF = 'syntax = "proto3"; package google.protobuf; '
_TYPE = 'syntax = "proto3"; package google.type; '
_ONLY_OPTIONS = 'syntax = "proto3";'
"""Of files whose messages only describe schemas: a field of their types is not defined."""

FILES = {
    "google/protobuf/any.proto": _PROTOBUF + "message Any { string type_url = 1; bytes value = 2; }",
    "google/protobuf/duration.proto": _PROTOBUF + "message Duration { int64 seconds = 1; int32 nanos = 2; }",
    "google/protobuf/timestamp.proto": _PROTOBUF + "message Timestamp { int64 seconds = 1; int32 nanos = 2; }",
    "google/protobuf/empty.proto": _PROTOBUF + "message Empty {}",
    "google/protobuf/field_mask.proto": _PROTOBUF + "message FieldMask { repeated string paths = 1; }",
    "google/protobuf/struct.proto": _PROTOBUF
    + """
    message Struct { map<string, Value> fields = 1; }
    message Value {
      oneof kind {
        NullValue null_value = 1; double number_value = 2; string string_value = 3; bool bool_value = 4;
        Struct struct_value = 5; ListValue list_value = 6;
      }
    }
    enum NullValue { NULL_VALUE = 0; }
    message ListValue { repeated Value values = 1; }
    """,
    "google/protobuf/wrappers.proto": _PROTOBUF
    + " ".join(
        f"message {name}Value {{ {name.lower()} value = 1; }}"
        for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
    ),
    "google/type/date.proto": _TYPE + "message Date { int32 year = 1; int32 month = 2; int32 day = 3; }",
    "google/type/timeofday.proto": _TYPE
    + "message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }",
    "google/type/money.proto": _TYPE + "message Money { string currency_code = 1; int64 units = 2; int32 nanos = 3; }",
    "google/type/decimal.proto": _TYPE + "message Decimal { string value = 1; }",
    "google/type/latlng.proto": _TYPE + "message LatLng { double latitude = 1; double longitude = 2; }",
    "confluent/type/decimal.proto": 'syntax = "proto3"; package confluent.type; '
    + "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
    "google/protobuf/descriptor.proto": _ONLY_OPTIONS,
    "google/protobuf/cpp_features.proto": _ONLY_OPTIONS,
    "google/protobuf/java_features.proto": _ONLY_OPTIONS,
    "confluent/meta.proto": _ONLY_OPTIONS,
}
