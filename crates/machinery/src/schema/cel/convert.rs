//! Conversions between types: `int("3")`, `string(1.5)`, `duration("1h")`.

use jiff::Timestamp;

use super::eval::Meter;
use super::functions::{Gives, Kind, Row};
use super::time::{self, Part};
use super::value::{Fault, Outcome, Val};

const BOOL: Gives = Gives::Kind(Kind::Bool);
const INT: Gives = Gives::Kind(Kind::Int);
const UINT: Gives = Gives::Kind(Kind::UInt);
const DOUBLE: Gives = Gives::Kind(Kind::Double);
const TEXT: Gives = Gives::Kind(Kind::Text);
const BYTES: Gives = Gives::Kind(Kind::Bytes);
const DURATION: Gives = Gives::Kind(Kind::Duration);
const TIMESTAMP: Gives = Gives::Kind(Kind::Timestamp);

pub(super) const FUNCTIONS: &[Row] = &[
    ("bool", false, &[Kind::Bool], BOOL, |v, _| Ok(v[0].clone())),
    ("bool", false, &[Kind::Text], BOOL, |v, _| match text(&v[0])? {
        "true" | "True" | "TRUE" | "t" | "T" | "1" => Ok(Val::Bool(true)),
        "false" | "False" | "FALSE" | "f" | "F" | "0" => Ok(Val::Bool(false)),
        _ => Err(failed("string", "bool")),
    }),
    ("bytes", false, &[Kind::Bytes], BYTES, |v, _| Ok(v[0].clone())),
    ("bytes", false, &[Kind::Text], BYTES, |v, meter| {
        meter.read(text(&v[0])?)?;
        Ok(Val::Bytes(text(&v[0])?.as_bytes().into()))
    }),
    ("double", false, &[Kind::Double], DOUBLE, to_double),
    ("double", false, &[Kind::Int], DOUBLE, to_double),
    ("double", false, &[Kind::UInt], DOUBLE, to_double),
    ("double", false, &[Kind::Text], DOUBLE, to_double),
    ("int", false, &[Kind::Int], INT, to_int),
    ("int", false, &[Kind::UInt], INT, to_int),
    ("int", false, &[Kind::Double], INT, to_int),
    ("int", false, &[Kind::Text], INT, to_int),
    ("int", false, &[Kind::Timestamp], INT, to_int),
    ("int", false, &[Kind::Duration], INT, to_int),
    ("uint", false, &[Kind::UInt], UINT, to_uint),
    ("uint", false, &[Kind::Int], UINT, to_uint),
    ("uint", false, &[Kind::Double], UINT, to_uint),
    ("uint", false, &[Kind::Text], UINT, to_uint),
    ("string", false, &[Kind::Text], TEXT, to_text),
    ("string", false, &[Kind::Bool], TEXT, to_text),
    ("string", false, &[Kind::Int], TEXT, to_text),
    ("string", false, &[Kind::UInt], TEXT, to_text),
    ("string", false, &[Kind::Double], TEXT, to_text),
    ("string", false, &[Kind::Bytes], TEXT, to_text),
    ("string", false, &[Kind::Duration], TEXT, to_text),
    ("string", false, &[Kind::Timestamp], TEXT, to_text),
    ("string", false, &[Kind::Ip], TEXT, to_text),
    ("string", false, &[Kind::Cidr], TEXT, to_text),
    ("duration", false, &[Kind::Duration], DURATION, |v, _| Ok(v[0].clone())),
    ("duration", false, &[Kind::Text], DURATION, |v, _| {
        time::parse_duration(text(&v[0])?)
            .map(Val::Duration)
            .ok_or_else(|| failed("string", "google.protobuf.Duration"))
    }),
    ("timestamp", false, &[Kind::Timestamp], TIMESTAMP, |v, _| Ok(v[0].clone())),
    ("timestamp", false, &[Kind::Text], TIMESTAMP, |v, _| {
        text(&v[0])?.parse().map(Val::Timestamp).map_err(|_| failed("string", "google.protobuf.Timestamp"))
    }),
    ("timestamp", false, &[Kind::Int], TIMESTAMP, |v, _| match &v[0] {
        Val::Int(seconds) => {
            Timestamp::from_second(*seconds).map(Val::Timestamp).map_err(|_| Fault::new("timestamp overflow"))
        }
        _ => Err(Fault::no_such_overload()),
    }),
];

fn failed(from: &str, to: &str) -> Fault {
    Fault::new(format!("type conversion error from '{from}' to '{to}'"))
}

/// The text in a value.
pub(super) fn text<'v>(value: &'v Val<'_>) -> Outcome<&'v str> {
    match value {
        Val::Text(text) => Ok(text),
        _ => Err(Fault::no_such_overload()),
    }
}

fn to_double<'a>(v: &[Val<'a>], _: &mut Meter) -> Outcome<Val<'a>> {
    Ok(Val::Double(match &v[0] {
        Val::Double(n) => *n,
        Val::Int(n) => *n as f64,
        Val::UInt(n) => *n as f64,
        Val::Text(text) => text.parse().map_err(|_| failed("string", "double"))?,
        _ => return Err(Fault::no_such_overload()),
    }))
}

fn to_int<'a>(v: &[Val<'a>], _: &mut Meter) -> Outcome<Val<'a>> {
    let overflow = || Fault::new("integer overflow");
    Ok(Val::Int(match &v[0] {
        Val::Int(n) => *n,
        Val::UInt(n) => i64::try_from(*n).map_err(|_| overflow())?,
        Val::Double(n) if *n > -(2_f64.powi(63)) && *n < 2_f64.powi(63) => *n as i64,
        Val::Double(_) => return Err(overflow()),
        Val::Text(text) => text.parse().map_err(|_| failed("string", "int"))?,
        Val::Timestamp(at) => at.as_second(),
        Val::Duration(nanos) => *nanos,
        _ => return Err(Fault::no_such_overload()),
    }))
}

fn to_uint<'a>(v: &[Val<'a>], _: &mut Meter) -> Outcome<Val<'a>> {
    let overflow = || Fault::new("unsigned integer overflow");
    Ok(Val::UInt(match &v[0] {
        Val::UInt(n) => *n,
        Val::Int(n) => u64::try_from(*n).map_err(|_| overflow())?,
        Val::Double(n) if *n >= 0.0 && *n < 2_f64.powi(64) => *n as u64,
        Val::Double(_) => return Err(overflow()),
        Val::Text(text) => text.parse().map_err(|_| failed("string", "uint"))?,
        _ => return Err(Fault::no_such_overload()),
    }))
}

fn to_text<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    meter.charge(v[0].weight())?;
    Ok(match &v[0] {
        Val::Text(_) => v[0].clone(),
        Val::Bytes(bytes) => {
            let text = std::str::from_utf8(bytes)
                .map_err(|_| Fault::new("invalid UTF-8 in bytes, cannot convert to string"))?;
            Val::text(text.to_owned())
        }
        other => Val::text(show(other).ok_or_else(Fault::no_such_overload)?),
    })
}

/// A scalar as `string()` and `%s` print it.
pub(super) fn show(value: &Val<'_>) -> Option<String> {
    Some(match value {
        Val::Null => "null".to_owned(),
        Val::Bool(flag) => flag.to_string(),
        Val::Int(n) => n.to_string(),
        Val::UInt(n) => n.to_string(),
        Val::Double(n) => show_double(*n),
        Val::Text(text) => text.to_string(),
        Val::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Val::Duration(nanos) => time::show_duration(*nanos),
        Val::Timestamp(at) => at.to_string(),
        Val::Type(name) => (*name).to_owned(),
        Val::Quantity(quantity) => quantity.to_string(),
        Val::Ip(address) => address.to_string(),
        Val::Cidr(cidr) => cidr.to_string(),
        _ => return None,
    })
}

fn show_double(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    number.to_string()
}

/// A part of a timestamp, in the zone that the second argument names, or of a duration.
pub(super) fn part<'a>(v: &[Val<'a>], part: Part) -> Outcome<Val<'a>> {
    let zone = v.get(1).map(text).transpose()?;
    match &v[0] {
        Val::Timestamp(at) => time::part(*at, part, zone).map(Val::Int),
        Val::Duration(nanos) => time::duration_part(*nanos, part).map(Val::Int),
        _ => Err(Fault::no_such_overload()),
    }
}
