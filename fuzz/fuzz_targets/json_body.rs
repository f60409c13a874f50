//! A JSON body as any kind: parsed, pruned, defaulted, typed, validated.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tether_machinery::{builtin, json, kinds, proto, schema};

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let Ok((mut object, _)) = json::parse_strict(rest) else { return };
    let kind = &kinds::ALL[usize::from(*first) % kinds::ALL.len()];
    let Some(known) = builtin::schema(kind.group, kind.version, kind.kind) else { return };
    schema::prune(&mut object, &known);
    if schema::decode(&mut object, &known).is_err() {
        return;
    }
    proto::trim(&kind.api_version(), kind.kind, &mut object);
    (kind.strategy.default)(&mut object);
    let _ = (kind.strategy.validate_create)(&object);
    let before = object.clone();
    schema::prune(&mut object, &known);
    assert_eq!(before, object, "pruning what was pruned changes nothing");
});
