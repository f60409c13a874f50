//! Functions of lists, and of lists as sets.

use std::cmp::Ordering;

use super::eval::Meter;
use super::functions::{Gives, Kind, Row};
use super::operators as ops;
use super::program::{MAP_INSERT, MAP_MERGE, SORT_BY_KEYS};
use super::value::{Fault, List, Outcome, Val};
use cel::common::ast::operators;

const BOOL: Gives = Gives::Kind(Kind::Bool);
const INT: Gives = Gives::Kind(Kind::Int);
const LIST: Gives = Gives::Kind(Kind::List);

/// Elements that `lists.range` may make.
const MAX_RANGE: i64 = 1_000_000;

pub(super) const FUNCTIONS: &[Row] = &[
    ("isSorted", true, &[Kind::List], BOOL, is_sorted),
    ("sum", true, &[Kind::List], Gives::Inside, sum),
    ("min", true, &[Kind::List], Gives::Inside, |v, m| extreme(v, m, "min", Ordering::is_lt)),
    ("max", true, &[Kind::List], Gives::Inside, |v, m| extreme(v, m, "max", Ordering::is_gt)),
    ("indexOf", true, &[Kind::List, Kind::Any], INT, |v, m| position(v, m, false)),
    ("lastIndexOf", true, &[Kind::List, Kind::Any], INT, |v, m| position(v, m, true)),
    ("distinct", true, &[Kind::List], Gives::Same, distinct),
    ("flatten", true, &[Kind::List], LIST, flatten),
    ("flatten", true, &[Kind::List, Kind::Int], LIST, flatten),
    ("reverse", true, &[Kind::List], Gives::Same, |v, m| {
        m.charge(v[0].weight())?;
        let mut items = items(&v[0])?;
        items.reverse();
        Ok(Val::list(items))
    }),
    ("slice", true, &[Kind::List, Kind::Int, Kind::Int], Gives::Same, slice),
    ("sort", true, &[Kind::List], Gives::Same, |v, m| {
        let items = items(&v[0])?;
        sorted(&items, &items, m)
    }),
    (SORT_BY_KEYS, false, &[Kind::List, Kind::List], Gives::Same, |v, m| sorted(&items(&v[0])?, &items(&v[1])?, m)),
    // Loops do these in place; the rows are for the checker.
    (MAP_INSERT, false, &[Kind::Map, Kind::Any, Kind::Any], Gives::Same, |_, _| Err(Fault::no_such_overload())),
    (MAP_MERGE, false, &[Kind::Map, Kind::Map], Gives::Same, |_, _| Err(Fault::no_such_overload())),
    ("first", true, &[Kind::List], Gives::OptionalInside, |v, _| end(v, |list| (list.len() > 0).then_some(0))),
    ("last", true, &[Kind::List], Gives::OptionalInside, |v, _| end(v, |list| list.len().checked_sub(1))),
    ("lists.range", false, &[Kind::Int], LIST, range),
    ("sets.contains", false, &[Kind::List, Kind::List], BOOL, |v, m| sets(v, m, |a, b| all_in(b, a))),
    ("sets.equivalent", false, &[Kind::List, Kind::List], BOOL, |v, m| sets(v, m, |a, b| all_in(a, b) && all_in(b, a))),
    ("sets.intersects", false, &[Kind::List, Kind::List], BOOL, |v, m| {
        sets(v, m, |a, b| a.iter().any(|x| b.iter().any(|y| x.equals(y))))
    }),
];

fn items<'a>(value: &Val<'a>) -> Outcome<Vec<Val<'a>>> {
    match value {
        Val::List(list) => list.items(),
        _ => Err(Fault::no_such_overload()),
    }
}

fn is_sorted<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    meter.charge(v[0].weight())?;
    for pair in items(&v[0])?.windows(2) {
        if pair[0].compare(&pair[1])?.is_none_or(Ordering::is_gt) {
            return Ok(Val::Bool(false));
        }
    }
    Ok(Val::Bool(true))
}

fn sum<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let mut items = items(&v[0])?.into_iter();
    let Some(mut total) = items.next() else { return Ok(Val::Int(0)) };
    if !matches!(total, Val::Int(_) | Val::UInt(_) | Val::Double(_) | Val::Duration(_)) {
        return Err(Fault::no_such_overload());
    }
    for item in items {
        meter.charge(1)?;
        total = ops::apply(operators::ADD, &[total, item], meter)?;
    }
    Ok(total)
}

fn extreme<'a>(v: &[Val<'a>], meter: &mut Meter, name: &str, better: fn(Ordering) -> bool) -> Outcome<Val<'a>> {
    meter.charge(v[0].weight())?;
    let mut items = items(&v[0])?.into_iter();
    let mut best = items.next().ok_or_else(|| Fault::new(format!("{name} called on empty list")))?;
    for item in items {
        if item.compare(&best)?.is_some_and(better) {
            best = item;
        }
    }
    Ok(best)
}

fn position<'a>(v: &[Val<'a>], meter: &mut Meter, last: bool) -> Outcome<Val<'a>> {
    meter.charge(v[0].weight())?;
    let items = items(&v[0])?;
    let mut indices: Box<dyn Iterator<Item = usize>> =
        if last { Box::new((0..items.len()).rev()) } else { Box::new(0..items.len()) };
    let found = indices.find(|at| items[*at].equals(&v[1]));
    Ok(Val::Int(found.map_or(-1, |at| at as i64)))
}

fn distinct<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let mut out: Vec<Val<'a>> = Vec::new();
    for item in items(&v[0])? {
        meter.charge(1 + out.len() as u64)?;
        if !out.iter().any(|known| known.equals(&item)) {
            out.push(item);
        }
    }
    Ok(Val::list(out))
}

fn flatten<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let depth = match v.get(1) {
        Some(Val::Int(depth)) if *depth >= 0 => *depth,
        Some(_) => return Err(Fault::new("level must be non-negative")),
        None => 1,
    };
    let mut out = Vec::new();
    meter.charge(v[0].weight())?;
    flatten_into(items(&v[0])?, depth, &mut out)?;
    Ok(Val::list(out))
}

fn flatten_into<'a>(items: Vec<Val<'a>>, depth: i64, out: &mut Vec<Val<'a>>) -> Outcome<()> {
    for item in items {
        match &item {
            Val::List(list) if depth > 0 => flatten_into(list.items()?, depth - 1, out)?,
            _ => out.push(item),
        }
    }
    Ok(())
}

fn slice<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let (Val::List(list), Val::Int(start), Val::Int(end)) = (&v[0], &v[1], &v[2]) else {
        return Err(Fault::no_such_overload());
    };
    let bad = || Fault::new(format!("cannot slice({start}, {end}), list is of length {}", list.len()));
    let (from, to) = (usize::try_from(*start).map_err(|_| bad())?, usize::try_from(*end).map_err(|_| bad())?);
    if from > to || to > list.len() {
        return Err(bad());
    }
    meter.charge((to - from) as u64)?;
    Ok(Val::list(list.items()?.drain(from..to).collect()))
}

/// `values` in the order of `keys`.
fn sorted<'a>(values: &[Val<'a>], keys: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let weight: u64 = keys.iter().map(Val::weight).sum();
    meter.charge(weight.saturating_mul(1 + u64::from(keys.len().max(1).ilog2())))?;
    for pair in keys.windows(2) {
        pair[0].compare(&pair[1])?;
    }
    let mut order: Vec<usize> = (0..values.len().min(keys.len())).collect();
    order.sort_by(|a, b| keys[*a].compare(&keys[*b]).ok().flatten().unwrap_or(Ordering::Equal));
    Ok(Val::list(order.into_iter().map(|at| values[at].clone()).collect()))
}

fn end<'a>(v: &[Val<'a>], at: fn(&List<'a>) -> Option<usize>) -> Outcome<Val<'a>> {
    let Val::List(list) = &v[0] else { return Err(Fault::no_such_overload()) };
    let found = at(list).and_then(|at| list.get(at)).transpose()?;
    Ok(found.map_or(Val::Optional(None), Val::some))
}

fn range<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let Val::Int(n) = v[0] else { return Err(Fault::no_such_overload()) };
    if n > MAX_RANGE {
        return Err(Fault::CostLimit);
    }
    meter.charge(n.unsigned_abs())?;
    Ok(Val::list((0..n).map(Val::Int).collect()))
}

fn all_in<'a>(of: &[Val<'a>], within: &[Val<'a>]) -> bool {
    of.iter().all(|x| within.iter().any(|y| x.equals(y)))
}

fn sets<'a>(v: &[Val<'a>], meter: &mut Meter, holds: fn(&[Val<'a>], &[Val<'a>]) -> bool) -> Outcome<Val<'a>> {
    meter.charge(v[0].weight().saturating_mul(v[1].weight()))?;
    Ok(Val::Bool(holds(&items(&v[0])?, &items(&v[1])?)))
}
