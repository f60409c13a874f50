//! Operators: arithmetic that does not overflow in silence, comparison, selection, membership.

use std::cmp::Ordering;
use std::rc::Rc;

use cel::common::ast::operators;
use jiff::SignedDuration;

use super::eval::Meter;
use super::value::{Fault, List, Map, Outcome, Val};
use crate::schema::ListType;

/// Applies an operator to values.
pub(super) fn apply<'a>(name: &str, values: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    match (name, values) {
        (operators::LOGICAL_NOT, [Val::Bool(flag)]) => Ok(Val::Bool(!flag)),
        (operators::NEGATE, [value]) => negate(value),
        (operators::EQUALS, [a, b]) => equal(a, b, meter).map(Val::Bool),
        (operators::NOT_EQUALS, [a, b]) => equal(a, b, meter).map(|same| Val::Bool(!same)),
        (operators::LESS, [a, b]) => order(a, b, meter, Ordering::is_lt),
        (operators::LESS_EQUALS, [a, b]) => order(a, b, meter, Ordering::is_le),
        (operators::GREATER, [a, b]) => order(a, b, meter, Ordering::is_gt),
        (operators::GREATER_EQUALS, [a, b]) => order(a, b, meter, Ordering::is_ge),
        (operators::ADD, [a, b]) => add(a, b, meter),
        (operators::SUBSTRACT, [a, b]) => subtract(a, b),
        (operators::MULTIPLY | operators::DIVIDE | operators::MODULO, [a, b]) => scale(name, a, b),
        (operators::IN, [element, container]) => contains(element, container, meter).map(Val::Bool),
        (operators::INDEX, [container, key]) => index(container, key),
        (operators::OPT_INDEX, [container, key]) => optional_index(container, key),
        (operators::OPT_SELECT, [operand, Val::Text(field)]) => optional_select(operand, field),
        _ => Err(Fault::no_such_overload()),
    }
}

fn equal<'a>(a: &Val<'a>, b: &Val<'a>, meter: &mut Meter) -> Outcome<bool> {
    meter.charge(a.weight().min(b.weight()))?;
    Ok(a.equals(b))
}

fn order<'a>(a: &Val<'a>, b: &Val<'a>, meter: &mut Meter, holds: fn(Ordering) -> bool) -> Outcome<Val<'a>> {
    meter.charge(a.weight().min(b.weight()))?;
    Ok(Val::Bool(a.compare(b)?.is_some_and(holds)))
}

fn negate<'a>(value: &Val<'a>) -> Outcome<Val<'a>> {
    match value {
        Val::Int(n) => n.checked_neg().map(Val::Int).ok_or_else(overflow),
        Val::Double(n) => Ok(Val::Double(-n)),
        Val::Duration(n) => n.checked_neg().map(Val::Duration).ok_or_else(overflow),
        _ => Err(Fault::no_such_overload()),
    }
}

fn overflow() -> Fault {
    Fault::new("integer overflow")
}

fn add<'a>(a: &Val<'a>, b: &Val<'a>, meter: &mut Meter) -> Outcome<Val<'a>> {
    Ok(match (a, b) {
        (Val::Int(a), Val::Int(b)) => Val::Int(a.checked_add(*b).ok_or_else(overflow)?),
        (Val::UInt(a), Val::UInt(b)) => {
            Val::UInt(a.checked_add(*b).ok_or_else(|| Fault::new("unsigned integer overflow"))?)
        }
        (Val::Double(a), Val::Double(b)) => Val::Double(a + b),
        (Val::Text(a), Val::Text(b)) => {
            meter.charge((a.len() + b.len()) as u64 / 10)?;
            Val::text(format!("{a}{b}"))
        }
        (Val::Bytes(a), Val::Bytes(b)) => {
            meter.charge((a.len() + b.len()) as u64 / 10)?;
            Val::Bytes(a.iter().chain(b.iter()).copied().collect())
        }
        (Val::List(a), Val::List(b)) => {
            meter.charge((a.len() + b.len()) as u64)?;
            join(a, b, meter)?
        }
        (Val::Duration(a), Val::Duration(b)) => {
            Val::Duration(a.checked_add(*b).ok_or_else(|| Fault::new("duration overflow"))?)
        }
        (Val::Timestamp(at), Val::Duration(by)) | (Val::Duration(by), Val::Timestamp(at)) => {
            let moved = at.checked_add(SignedDuration::from_nanos(*by));
            Val::Timestamp(moved.map_err(|_| Fault::new("timestamp overflow"))?)
        }
        _ => return Err(Fault::no_such_overload()),
    })
}

/// `+` of lists: sets are united, map lists are merged by key, anything else is put end to end.
fn join<'a>(a: &List<'a>, b: &List<'a>, meter: &mut Meter) -> Outcome<Val<'a>> {
    let (mut items, added) = (a.items()?, b.items()?);
    match a.kind() {
        ListType::Atomic => items.extend(added),
        ListType::Set => {
            meter.charge((a.len() * b.len()) as u64)?;
            for value in added {
                if !items.iter().any(|known| known.equals(&value)) {
                    items.push(value);
                }
            }
        }
        ListType::Map(keys) => {
            meter.charge((a.len() * b.len()) as u64)?;
            for value in added {
                let same = |known: &Val<'a>| keys.iter().all(|key| field_equals(known, &value, key));
                match items.iter().position(same) {
                    Some(at) => items[at] = value,
                    None => items.push(value),
                }
            }
        }
    }
    Ok(Val::List(List::Own(Rc::new(items), a.kind())))
}

fn field_equals<'a>(a: &Val<'a>, b: &Val<'a>, name: &str) -> bool {
    let field = |value: &Val<'a>| match value {
        Val::Map(map) => map.field(name).and_then(Result::ok),
        _ => None,
    };
    match (field(a), field(b)) {
        (Some(a), Some(b)) => a.equals(&b),
        (None, None) => true,
        _ => false,
    }
}

fn subtract<'a>(a: &Val<'a>, b: &Val<'a>) -> Outcome<Val<'a>> {
    Ok(match (a, b) {
        (Val::Int(a), Val::Int(b)) => Val::Int(a.checked_sub(*b).ok_or_else(overflow)?),
        (Val::UInt(a), Val::UInt(b)) => {
            Val::UInt(a.checked_sub(*b).ok_or_else(|| Fault::new("unsigned integer overflow"))?)
        }
        (Val::Double(a), Val::Double(b)) => Val::Double(a - b),
        (Val::Duration(a), Val::Duration(b)) => {
            Val::Duration(a.checked_sub(*b).ok_or_else(|| Fault::new("duration overflow"))?)
        }
        (Val::Timestamp(at), Val::Duration(by)) => {
            let moved = at.checked_sub(SignedDuration::from_nanos(*by));
            Val::Timestamp(moved.map_err(|_| Fault::new("timestamp overflow"))?)
        }
        (Val::Timestamp(a), Val::Timestamp(b)) => {
            let nanos = a.duration_since(*b).as_nanos();
            Val::Duration(i64::try_from(nanos).map_err(|_| Fault::new("duration overflow"))?)
        }
        _ => return Err(Fault::no_such_overload()),
    })
}

fn scale<'a>(name: &str, a: &Val<'a>, b: &Val<'a>) -> Outcome<Val<'a>> {
    let zero = || match name {
        operators::DIVIDE => Fault::new("division by zero"),
        _ => Fault::new("modulus by zero"),
    };
    Ok(match (name, a, b) {
        (operators::MULTIPLY, Val::Int(a), Val::Int(b)) => Val::Int(a.checked_mul(*b).ok_or_else(overflow)?),
        (operators::MULTIPLY, Val::UInt(a), Val::UInt(b)) => {
            Val::UInt(a.checked_mul(*b).ok_or_else(|| Fault::new("unsigned integer overflow"))?)
        }
        (operators::MULTIPLY, Val::Double(a), Val::Double(b)) => Val::Double(a * b),
        (operators::DIVIDE, Val::Double(a), Val::Double(b)) => Val::Double(a / b),
        (_, Val::Int(_), Val::Int(0)) | (_, Val::UInt(_), Val::UInt(0)) => return Err(zero()),
        (operators::DIVIDE, Val::Int(a), Val::Int(b)) => Val::Int(a.checked_div(*b).ok_or_else(overflow)?),
        (operators::DIVIDE, Val::UInt(a), Val::UInt(b)) => Val::UInt(a / b),
        (operators::MODULO, Val::Int(a), Val::Int(b)) => Val::Int(a.checked_rem(*b).ok_or_else(overflow)?),
        (operators::MODULO, Val::UInt(a), Val::UInt(b)) => Val::UInt(a % b),
        _ => return Err(Fault::no_such_overload()),
    })
}

fn contains<'a>(element: &Val<'a>, container: &Val<'a>, meter: &mut Meter) -> Outcome<bool> {
    match container {
        Val::List(list) => {
            meter.charge(container.weight())?;
            Ok(list.items()?.iter().any(|item| item.equals(element)))
        }
        Val::Map(map) => Ok(map.get(element).is_some()),
        _ => Err(Fault::no_such_overload()),
    }
}

fn no_such_key(key: &str) -> Fault {
    Fault::new(format!("no such key: {key}"))
}

fn shown(key: &Val<'_>) -> String {
    match key {
        Val::Text(text) => text.to_string(),
        Val::Int(n) => n.to_string(),
        Val::UInt(n) => n.to_string(),
        Val::Bool(flag) => flag.to_string(),
        other => other.type_name().to_owned(),
    }
}

fn position(key: &Val<'_>) -> Option<i64> {
    match key {
        Val::Int(n) => Some(*n),
        Val::UInt(n) => i64::try_from(*n).ok(),
        Val::Double(n) if n.fract() == 0.0 => Some(*n as i64),
        _ => None,
    }
}

fn index<'a>(container: &Val<'a>, key: &Val<'a>) -> Outcome<Val<'a>> {
    match container {
        Val::List(list) => {
            let at = position(key).ok_or_else(Fault::no_such_overload)?;
            let found = usize::try_from(at).ok().and_then(|at| list.get(at));
            found.unwrap_or_else(|| Err(Fault::new(format!("index out of bounds: {at}"))))
        }
        Val::Map(map) => map.get(key).unwrap_or_else(|| Err(no_such_key(&shown(key)))),
        Val::Optional(Some(inner)) => optional_index(inner, key),
        Val::Optional(None) => Ok(Val::Optional(None)),
        _ => Err(Fault::no_such_overload()),
    }
}

fn optional_index<'a>(container: &Val<'a>, key: &Val<'a>) -> Outcome<Val<'a>> {
    let found = match container {
        Val::List(list) => {
            let at = position(key).ok_or_else(Fault::no_such_overload)?;
            usize::try_from(at).ok().and_then(|at| list.get(at))
        }
        Val::Map(map) => map.get(key),
        Val::Optional(Some(inner)) => return optional_index(inner, key),
        Val::Optional(None) => None,
        _ => return Err(Fault::no_such_overload()),
    };
    Ok(found.transpose()?.map_or(Val::Optional(None), Val::some))
}

/// `a.b`
pub(super) fn select<'a>(operand: &Val<'a>, field: &str) -> Outcome<Val<'a>> {
    match operand {
        Val::Map(map) => map.field(field).unwrap_or_else(|| Err(no_such_key(field))),
        Val::Optional(_) => optional_select(operand, field),
        _ => Err(Fault::no_such_overload()),
    }
}

fn optional_select<'a>(operand: &Val<'a>, field: &str) -> Outcome<Val<'a>> {
    match operand {
        Val::Map(map) => Ok(map.field(field).transpose()?.map_or(Val::Optional(None), Val::some)),
        Val::Optional(Some(inner)) => optional_select(inner, field),
        Val::Optional(None) => Ok(Val::Optional(None)),
        _ => Err(Fault::no_such_overload()),
    }
}

/// `has(a.b)`
pub(super) fn has<'a>(operand: &Val<'a>, field: &str) -> Outcome<Val<'a>> {
    match operand {
        Val::Map(map) => Ok(Val::Bool(map.field(field).is_some())),
        Val::Optional(Some(inner)) => has(inner, field),
        Val::Optional(None) => Ok(Val::Bool(false)),
        _ => Err(Fault::no_such_overload()),
    }
}

/// Adds an entry to a map under construction.
pub(super) fn insert<'a>(
    entries: &mut Vec<(Val<'a>, Val<'a>)>,
    key: Val<'a>,
    value: Val<'a>,
    meter: &mut Meter,
) -> Outcome<()> {
    if !matches!(key, Val::Text(_) | Val::Int(_) | Val::UInt(_) | Val::Bool(_)) {
        return Err(Fault::new(format!("unsupported key type: {}", key.type_name())));
    }
    meter.charge(1 + entries.len() as u64)?;
    if entries.iter().any(|(known, _)| known.equals(&key)) {
        return Err(Fault::new(format!("insert failed: key {} already exists", shown(&key))));
    }
    entries.push((key, value));
    Ok(())
}

/// A map of these entries.
pub(super) fn map_of<'a>(entries: Vec<(Val<'a>, Val<'a>)>) -> Val<'a> {
    Val::Map(Map::Own(Rc::new(entries)))
}
