//! Every function that a rule can call: what it takes, what it gives, what runs.
//!
//! One table serves the check at creation and the call at run time. Functions are those of CEL, of its
//! string, list and set extensions, and of Kubernetes (`isSorted`, `quantity`, `url`, `ip`, …).

use std::sync::LazyLock;

use super::eval::Meter;
use super::time::Part;
use super::value::{Fault, Outcome, Val};
use super::{convert, library, lists, strings};

/// What an argument must be, and what a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Anything, or the checker cannot know.
    Any,
    Bool,
    Int,
    UInt,
    Double,
    Text,
    Bytes,
    List,
    Map,
    Optional,
    Duration,
    Timestamp,
    Type,
    Quantity,
    Url,
    Ip,
    Cidr,
    Format,
    Semver,
}

/// What the checker knows about a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gives {
    Kind(Kind),
    /// A list of texts.
    Texts,
    /// What the first argument is.
    Same,
    /// An element of the first argument, or what is inside it.
    Inside,
    /// An optional of the first argument.
    OptionalOf,
    /// An optional element of the first argument.
    OptionalInside,
}

pub(super) type Run = for<'a> fn(&[Val<'a>], &mut Meter) -> Outcome<Val<'a>>;

/// One way to call a function.
pub(super) struct Function {
    pub name: &'static str,
    /// Called on its first argument.
    pub member: bool,
    pub takes: &'static [Kind],
    pub gives: Gives,
    pub run: Run,
}

impl Kind {
    pub(super) fn of(value: &Val<'_>) -> Self {
        match value {
            Val::Null | Val::Opaque(_) => Self::Any,
            Val::Bool(_) => Self::Bool,
            Val::Int(_) => Self::Int,
            Val::UInt(_) => Self::UInt,
            Val::Double(_) => Self::Double,
            Val::Text(_) => Self::Text,
            Val::Bytes(_) => Self::Bytes,
            Val::List(_) => Self::List,
            Val::Map(_) => Self::Map,
            Val::Optional(_) => Self::Optional,
            Val::Duration(_) => Self::Duration,
            Val::Timestamp(_) => Self::Timestamp,
            Val::Type(_) => Self::Type,
            Val::Quantity(_) => Self::Quantity,
            Val::Url(_) => Self::Url,
            Val::Ip(_) => Self::Ip,
            Val::Cidr(_) => Self::Cidr,
            Val::Format(_) => Self::Format,
            Val::Semver(_) => Self::Semver,
        }
    }
}

/// The ways to call `name` with that many arguments, the one it is called on included.
pub(super) fn named(name: &str, member: bool, arguments: usize) -> impl Iterator<Item = &'static Function> + use<> {
    let from = FUNCTIONS.partition_point(|function| function.name < name);
    let to = FUNCTIONS.partition_point(|function| function.name <= name);
    FUNCTIONS[from..to].iter().filter(move |function| function.member == member && function.takes.len() == arguments)
}

/// Whether there is any function of that name.
pub(super) fn exists(name: &str) -> bool {
    FUNCTIONS.binary_search_by(|function| function.name.cmp(name)).is_ok()
}

pub(super) fn call<'a>(name: &str, member: bool, values: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    meter.charge(1)?;
    let fits = |function: &&Function| {
        function.takes.iter().zip(values).all(|(want, value)| *want == Kind::Any || *want == Kind::of(value))
    };
    match named(name, member, values.len()).find(fits) {
        Some(function) => (function.run)(values, meter),
        None if exists(name) => Err(Fault::no_such_overload()),
        None => Err(Fault::new(format!("undeclared reference to '{name}'"))),
    }
}

/// Names that functions stand behind: `ip` in `ip.isCanonical`.
pub(super) fn is_namespace(name: &str) -> bool {
    matches!(name, "optional" | "sets" | "strings" | "lists" | "ip" | "format")
}

/// Names that types stand behind: `net` in `net.IP`.
pub(super) fn is_package(name: &str) -> bool {
    matches!(name, "google" | "kubernetes" | "net")
}

/// A type, called by its name.
pub(super) fn type_named(name: &str) -> Option<&'static str> {
    const TYPES: [&str; 19] = [
        "bool",
        "bytes",
        "double",
        "google.protobuf.Duration",
        "google.protobuf.Timestamp",
        "int",
        "kubernetes.NamedFormat",
        "kubernetes.Quantity",
        "kubernetes.Semver",
        "kubernetes.URL",
        "list",
        "map",
        "net.CIDR",
        "net.IP",
        "null_type",
        "optional_type",
        "string",
        "type",
        "uint",
    ];
    TYPES.iter().find(|known| **known == name).copied()
}

static FUNCTIONS: LazyLock<Vec<Function>> = LazyLock::new(|| {
    let mut all: Vec<Function> = Vec::new();
    let tables: [&[Row]; 5] = [CORE, convert::FUNCTIONS, strings::FUNCTIONS, lists::FUNCTIONS, library::FUNCTIONS];
    for (name, member, takes, gives, run) in tables.into_iter().flatten() {
        all.push(Function { name, member: *member, takes, gives: *gives, run: *run });
    }
    all.sort_by_key(|function| function.name);
    all
});

/// Name, whether it is called on its first argument, arguments, result, what runs.
pub(super) type Row = (&'static str, bool, &'static [Kind], Gives, Run);

const ANY: Gives = Gives::Kind(Kind::Any);
const BOOL: Gives = Gives::Kind(Kind::Bool);
const INT: Gives = Gives::Kind(Kind::Int);

/// Sizes, optionals and parts of times.
const CORE: &[Row] = &[
    ("size", false, &[Kind::Text], INT, size),
    ("size", true, &[Kind::Text], INT, size),
    ("size", false, &[Kind::Bytes], INT, size),
    ("size", true, &[Kind::Bytes], INT, size),
    ("size", false, &[Kind::List], INT, size),
    ("size", true, &[Kind::List], INT, size),
    ("size", false, &[Kind::Map], INT, size),
    ("size", true, &[Kind::Map], INT, size),
    ("optional.of", false, &[Kind::Any], Gives::OptionalOf, |v, _| Ok(Val::some(v[0].clone()))),
    ("optional.none", false, &[], Gives::Kind(Kind::Optional), |_, _| Ok(Val::Optional(None))),
    ("optional.ofNonZeroValue", false, &[Kind::Any], Gives::OptionalOf, |v, _| {
        Ok(if v[0].is_zero() { Val::Optional(None) } else { Val::some(v[0].clone()) })
    }),
    ("hasValue", true, &[Kind::Optional], BOOL, |v, _| Ok(Val::Bool(matches!(&v[0], Val::Optional(Some(_)))))),
    ("value", true, &[Kind::Optional], Gives::Inside, |v, _| match &v[0] {
        Val::Optional(Some(inner)) => Ok(Val::clone(inner)),
        _ => Err(Fault::new("optional.none() dereference")),
    }),
    ("or", true, &[Kind::Optional, Kind::Optional], Gives::Same, |v, _| match &v[0] {
        Val::Optional(Some(_)) => Ok(v[0].clone()),
        _ => Ok(v[1].clone()),
    }),
    ("orValue", true, &[Kind::Optional, Kind::Any], Gives::Inside, |v, _| match &v[0] {
        Val::Optional(Some(inner)) => Ok(Val::clone(inner)),
        _ => Ok(v[1].clone()),
    }),
    ("getFullYear", true, &[Kind::Timestamp], INT, |v, _| convert::part(v, Part::FullYear)),
    ("getFullYear", true, &[Kind::Timestamp, Kind::Text], INT, |v, _| convert::part(v, Part::FullYear)),
    ("getMonth", true, &[Kind::Timestamp], INT, |v, _| convert::part(v, Part::Month)),
    ("getMonth", true, &[Kind::Timestamp, Kind::Text], INT, |v, _| convert::part(v, Part::Month)),
    ("getDayOfYear", true, &[Kind::Timestamp], INT, |v, _| convert::part(v, Part::DayOfYear)),
    ("getDayOfYear", true, &[Kind::Timestamp, Kind::Text], INT, |v, _| convert::part(v, Part::DayOfYear)),
    ("getDayOfMonth", true, &[Kind::Timestamp], INT, |v, _| convert::part(v, Part::DayOfMonth)),
    ("getDayOfMonth", true, &[Kind::Timestamp, Kind::Text], INT, |v, _| convert::part(v, Part::DayOfMonth)),
    ("getDate", true, &[Kind::Timestamp], INT, |v, _| convert::part(v, Part::Date)),
    ("getDate", true, &[Kind::Timestamp, Kind::Text], INT, |v, _| convert::part(v, Part::Date)),
    ("getDayOfWeek", true, &[Kind::Timestamp], INT, |v, _| convert::part(v, Part::DayOfWeek)),
    ("getDayOfWeek", true, &[Kind::Timestamp, Kind::Text], INT, |v, _| convert::part(v, Part::DayOfWeek)),
    ("getHours", true, &[Kind::Timestamp], INT, |v, _| convert::part(v, Part::Hours)),
    ("getHours", true, &[Kind::Timestamp, Kind::Text], INT, |v, _| convert::part(v, Part::Hours)),
    ("getHours", true, &[Kind::Duration], INT, |v, _| convert::part(v, Part::Hours)),
    ("getMinutes", true, &[Kind::Timestamp], INT, |v, _| convert::part(v, Part::Minutes)),
    ("getMinutes", true, &[Kind::Timestamp, Kind::Text], INT, |v, _| convert::part(v, Part::Minutes)),
    ("getMinutes", true, &[Kind::Duration], INT, |v, _| convert::part(v, Part::Minutes)),
    ("getSeconds", true, &[Kind::Timestamp], INT, |v, _| convert::part(v, Part::Seconds)),
    ("getSeconds", true, &[Kind::Timestamp, Kind::Text], INT, |v, _| convert::part(v, Part::Seconds)),
    ("getSeconds", true, &[Kind::Duration], INT, |v, _| convert::part(v, Part::Seconds)),
    ("getMilliseconds", true, &[Kind::Timestamp], INT, |v, _| convert::part(v, Part::Milliseconds)),
    ("getMilliseconds", true, &[Kind::Timestamp, Kind::Text], INT, |v, _| convert::part(v, Part::Milliseconds)),
    ("getMilliseconds", true, &[Kind::Duration], INT, |v, _| convert::part(v, Part::Milliseconds)),
    ("dyn", false, &[Kind::Any], ANY, |v, _| Ok(v[0].clone())),
    ("type", false, &[Kind::Any], Gives::Kind(Kind::Type), |v, _| Ok(Val::Type(v[0].type_name()))),
];

fn size<'a>(values: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let size = match &values[0] {
        Val::Text(text) => {
            meter.read(text)?;
            text.chars().count()
        }
        Val::Bytes(bytes) => bytes.len(),
        Val::List(list) => list.len(),
        Val::Map(map) => map.len(),
        _ => return Err(Fault::no_such_overload()),
    };
    Ok(Val::Int(size as i64))
}
