//! A look at an expression before it ever runs: fields that exist, functions that exist, types that fit.
//!
//! Types come from the schema. Where it says nothing, or a function gives back what it was given in a way
//! that is not followed, the type is unknown and everything is allowed until the rule runs.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use cel::Program;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};

use super::escape::unescape;
use super::eval::is_operator;
use super::functions::{self, Gives, Kind};
use super::program::qualified_name;
use super::time;
use super::value::View;
use crate::schema::{Schema, Type, pattern};

/// Complaints about one expression; the first few say enough.
const MAX_ERRORS: usize = 10;

/// What is known about a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ty<'a> {
    Known(Kind),
    Null,
    List(Box<Ty<'a>>),
    /// From texts to values.
    Map(Box<Ty<'a>>),
    Object(&'a Schema, View),
    Optional(Box<Ty<'a>>),
}

const ANY: Ty<'static> = Ty::Known(Kind::Any);

impl<'a> Ty<'a> {
    /// The type of values of a node; none if rules cannot reach them.
    pub(super) fn of(schema: &'a Schema, view: View) -> Option<Self> {
        let schema = schema.resolve();
        Some(match (schema.ty, schema.format.as_deref()) {
            (Type::Any, _) => return None,
            (Type::IntOrString, _) => ANY,
            (Type::Boolean, _) => Self::Known(Kind::Bool),
            (Type::Integer, _) => Self::Known(Kind::Int),
            (Type::Number, _) => Self::Known(Kind::Double),
            (Type::String, Some("byte")) => Self::Known(Kind::Bytes),
            (Type::String, Some("duration")) => Self::Known(Kind::Duration),
            (Type::String, Some("date" | "date-time")) => Self::Known(Kind::Timestamp),
            (Type::String, _) => Self::Known(Kind::Text),
            (Type::Array, _) => {
                let items = schema.items.as_deref()?;
                Self::List(Box::new(Self::of(items, View::of(items))?))
            }
            (Type::Object, _) => match schema.additional.as_deref() {
                Some(values) if schema.properties.is_empty() && *values != Schema::anything() => {
                    Self::Map(Box::new(Self::of(values, View::of(values))?))
                }
                _ => Self::Object(schema, view),
            },
        })
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Known(kind) => *kind,
            Self::Null => Kind::Any,
            Self::List(_) => Kind::List,
            Self::Map(_) | Self::Object(..) => Kind::Map,
            Self::Optional(_) => Kind::Optional,
        }
    }

    fn is_any(&self) -> bool {
        self.kind() == Kind::Any
    }

    fn is(&self, kind: Kind) -> bool {
        self.is_any() || self.kind() == kind
    }

    /// One type for values of both.
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::List(a), Self::List(b)) => {
                // An empty list has elements of any type.
                let element = if a.is_any() {
                    *b
                } else if b.is_any() {
                    *a
                } else {
                    a.join(*b)
                };
                Self::List(Box::new(element))
            }
            (Self::Optional(a), Self::Optional(b)) if a.is_any() => Self::Optional(b),
            (Self::Optional(a), Self::Optional(b)) if b.is_any() => Self::Optional(a),
            (a, b) if a == b => a,
            _ => ANY,
        }
    }

    /// Whether values of the two can be equal at all.
    fn comparable(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, other) | (other, Self::Null) => other.may_be_null(),
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a.comparable(b),
            (a, b) => a.is_any() || b.is_any() || a.kind() == b.kind(),
        }
    }

    /// Whether null can stand in for a value: for objects and what is like one, not for scalars and lists.
    fn may_be_null(&self) -> bool {
        use Kind::{Bool, Bytes, Double, Int, List, Map, Text, Type, UInt};
        match self {
            Self::Null | Self::Object(..) => true,
            other => !matches!(other.kind(), Bool | Int | UInt | Double | Text | Bytes | List | Map | Type),
        }
    }

    fn inside(&self) -> Self {
        match self {
            Self::List(inner) | Self::Map(inner) | Self::Optional(inner) => Ty::clone(inner),
            _ => ANY,
        }
    }
}

impl fmt::Display for Ty<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::List(inner) => write!(f, "list({inner})"),
            Self::Map(values) => write!(f, "map(string, {values})"),
            Self::Object(..) => f.write_str("object"),
            Self::Optional(inner) => write!(f, "optional_type({inner})"),
            Self::Known(kind) => f.write_str(match kind {
                Kind::Any => "dyn",
                Kind::Bool => "bool",
                Kind::Int => "int",
                Kind::UInt => "uint",
                Kind::Double => "double",
                Kind::Text => "string",
                Kind::Bytes => "bytes",
                Kind::List => "list(dyn)",
                Kind::Map => "map(string, dyn)",
                Kind::Optional => "optional_type(dyn)",
                Kind::Duration => "duration",
                Kind::Timestamp => "timestamp",
                Kind::Type => "type",
                Kind::Quantity => "kubernetes.Quantity",
                Kind::Url => "kubernetes.URL",
                Kind::Ip => "net.IP",
                Kind::Cidr => "net.CIDR",
                Kind::Format => "kubernetes.NamedFormat",
                Kind::Semver => "kubernetes.Semver",
            }),
        }
    }
}

/// The type of an expression over these variables, or what is wrong with it, as the compiler words it.
pub(super) fn check<'a>(program: &'a Program, variables: Vec<(&'a str, Ty<'a>)>) -> Result<Ty<'a>, String> {
    let mut checker = Checker { program, variables, errors: BTreeMap::new() };
    let ty = checker.expr(program.expression());
    if checker.errors.is_empty() {
        return Ok(ty);
    }
    let texts: Vec<String> = checker.errors.iter().map(|(at, what)| checker.located(*at, what)).collect();
    Err(texts.join("\n"))
}

struct Checker<'a> {
    program: &'a Program,
    variables: Vec<(&'a str, Ty<'a>)>,
    /// By position, so that one mistake is not reported for everything around it.
    errors: BTreeMap<usize, String>,
}

impl<'a> Checker<'a> {
    fn error(&mut self, at: &IdedExpr, what: String) -> Ty<'a> {
        let offset = self.program.source_info().offset_for(at.id).map_or(0, |(start, _)| start as usize);
        if self.errors.len() < MAX_ERRORS {
            self.errors.entry(offset).or_insert(what);
        }
        ANY
    }

    /// The complaint with its line, and a mark under the place.
    fn located(&self, offset: usize, what: &str) -> String {
        let source = &self.program.source_info().source;
        let before = source.get(..offset).unwrap_or("");
        let line = before.matches('\n').count();
        let column = before.len() - before.rfind('\n').map_or(0, |at| at + 1);
        let text = source.lines().nth(line).unwrap_or("");
        let mut out = format!("ERROR: <input>:{}:{}: {what}", line + 1, column + 1);
        write!(out, "\n | {text}\n | {}^", ".".repeat(column)).expect("writing to a String must succeed");
        out
    }

    fn expr(&mut self, node: &'a IdedExpr) -> Ty<'a> {
        match &node.expr {
            Expr::Literal(value) => literal(value),
            Expr::Ident(name) => self.ident(node, name),
            Expr::Select(select) => self.select(node, select),
            Expr::Call(call) => self.call(node, call),
            Expr::List(list) => {
                let mut element = None;
                for (index, item) in list.elements.iter().enumerate() {
                    let mut ty = self.expr(item);
                    if list.optional_indices.contains(&index) {
                        ty = ty.inside();
                    }
                    element = Some(self.alike(item, element, ty));
                }
                Ty::List(Box::new(element.unwrap_or(ANY)))
            }
            Expr::Map(map) => {
                let (mut keys, mut values) = (None, None);
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else { continue };
                    let (key, mut value) = (self.expr(&entry.key), self.expr(&entry.value));
                    if entry.optional {
                        value = value.inside();
                    }
                    keys = Some(self.alike(&entry.key, keys, key));
                    values = Some(self.alike(&entry.value, values, value));
                }
                match (keys, values) {
                    (Some(Ty::Known(Kind::Text)), Some(values)) => Ty::Map(Box::new(values)),
                    _ => Ty::Known(Kind::Map),
                }
            }
            Expr::Comprehension(loop_) => self.comprehension(node, loop_),
            Expr::Struct(value) => {
                let what = format!("undeclared reference to '{}' (in container '')", value.type_name);
                self.error(node, what)
            }
            Expr::Unspecified => self.error(node, "unspecified expression".to_owned()),
        }
    }

    /// Elements of a list or a map are of one type.
    fn alike(&mut self, at: &IdedExpr, known: Option<Ty<'a>>, ty: Ty<'a>) -> Ty<'a> {
        match known {
            Some(known) if !known.comparable(&ty) => {
                self.error(at, format!("expected type '{known}' but found '{ty}'"));
                known
            }
            Some(known) => known.join(ty),
            None => ty,
        }
    }

    fn ident(&mut self, node: &IdedExpr, name: &str) -> Ty<'a> {
        if let Some((_, ty)) = self.variables.iter().rev().find(|(known, _)| *known == name) {
            return ty.clone();
        }
        if functions::type_named(name).is_some() {
            return Ty::Known(Kind::Type);
        }
        self.error(node, format!("undeclared reference to '{name}' (in container '')"))
    }

    fn select(&mut self, node: &'a IdedExpr, select: &'a SelectExpr) -> Ty<'a> {
        if let Some((name, root)) = qualified_name(&node.expr)
            && functions::is_package(root)
            && functions::type_named(&name).is_some()
            && !self.variables.iter().any(|(known, _)| *known == root)
        {
            return Ty::Known(Kind::Type);
        }
        let operand = self.expr(&select.operand);
        let found = self.field(node, &operand, &select.field);
        if select.test { Ty::Known(Kind::Bool) } else { found }
    }

    fn field(&mut self, node: &IdedExpr, operand: &Ty<'a>, name: &str) -> Ty<'a> {
        match operand {
            Ty::Object(schema, view) => {
                let field = unescape(name).and_then(|name| {
                    let field = schema.properties.get(name.as_ref()).filter(|field| view.shows(&name, field))?;
                    Ty::of(field, view.of_field(&name, field))
                });
                match field {
                    Some(ty) => ty,
                    None => self.error(node, format!("undefined field '{name}'")),
                }
            }
            Ty::Map(values) => Ty::clone(values),
            Ty::Optional(inner) => Ty::Optional(Box::new(self.field(node, &Ty::clone(inner), name))),
            ty if ty.is_any() || ty.kind() == Kind::Map => ANY,
            ty => self.error(node, format!("type '{ty}' does not support field selection")),
        }
    }

    fn call(&mut self, node: &'a IdedExpr, call: &'a CallExpr) -> Ty<'a> {
        let target = call.target.as_deref();
        if let Some(IdedExpr { expr: Expr::Ident(namespace), .. }) = target
            && functions::is_namespace(namespace)
            && !self.variables.iter().any(|(known, _)| known == namespace)
        {
            let args: Vec<Ty<'a>> = call.args.iter().map(|arg| self.expr(arg)).collect();
            return self.function(node, &format!("{namespace}.{}", call.func_name), false, &args);
        }
        if call.func_name == operators::OPT_SELECT
            && let [operand, IdedExpr { expr: Expr::Literal(LiteralValue::String(field)), .. }] = call.args.as_slice()
        {
            let operand = self.expr(operand);
            return match self.field(node, &operand, field.inner()) {
                already @ Ty::Optional(_) => already,
                ty => Ty::Optional(Box::new(ty)),
            };
        }
        let args: Vec<Ty<'a>> = if call.func_name == "format" {
            target.into_iter().chain(&call.args).map(|arg| self.format_argument(arg)).collect()
        } else {
            target.into_iter().chain(&call.args).map(|arg| self.expr(arg)).collect()
        };
        if matches!(call.func_name.as_str(), operators::LOGICAL_AND | operators::LOGICAL_OR) {
            for (arg, ty) in call.args.iter().zip(&args).filter(|(_, ty)| !ty.is(Kind::Bool)) {
                self.error(arg, format!("expected type 'bool' but found '{ty}'"));
            }
            return Ty::Known(Kind::Bool);
        }
        self.literals(call);
        if !is_operator(&call.func_name) {
            return self.function(node, &call.func_name, target.is_some(), &args);
        }
        match operator(&call.func_name, &args) {
            Some(ty) => ty,
            None => self.no_overload(node, &call.func_name, false, &args),
        }
    }

    /// The list that is put into a text may hold anything.
    fn format_argument(&mut self, arg: &'a IdedExpr) -> Ty<'a> {
        let Expr::List(list) = &arg.expr else { return self.expr(arg) };
        for element in &list.elements {
            self.expr(element);
        }
        Ty::List(Box::new(ANY))
    }

    /// Texts that functions read something else from must say that.
    fn literals(&mut self, call: &'a CallExpr) {
        let Some(last) = call.args.last() else { return };
        let Expr::Literal(LiteralValue::String(text)) = &last.expr else { return };
        let text = text.inner();
        let good = match (call.func_name.as_str(), call.target.is_some(), call.args.len()) {
            ("matches", true, 1) | ("matches", false, 2) => pattern::compile(text).is_ok(),
            ("duration", false, 1) => time::parse_duration(text).is_some(),
            ("timestamp", false, 1) => text.parse::<jiff::Timestamp>().is_ok(),
            _ => true,
        };
        if !good {
            self.error(last, format!("invalid {} argument", call.func_name));
        }
    }

    fn no_overload(&mut self, node: &IdedExpr, name: &str, member: bool, args: &[Ty<'a>]) -> Ty<'a> {
        let texts: Vec<String> = args.iter().map(ToString::to_string).collect();
        let applied = match texts.split_first() {
            Some((target, rest)) if member => format!("{target}.({})", rest.join(", ")),
            _ => format!("({})", texts.join(", ")),
        };
        self.error(node, format!("found no matching overload for '{name}' applied to '{applied}'"))
    }

    fn function(&mut self, node: &IdedExpr, name: &str, member: bool, args: &[Ty<'a>]) -> Ty<'a> {
        if !functions::exists(name) {
            return self.error(node, format!("undeclared reference to '{name}' (in container '')"));
        }
        let fits = |function: &&functions::Function| {
            function.takes.iter().zip(args).all(|(want, given)| {
                let object = matches!(given, Ty::Object(..));
                *want == Kind::Any || (given.is(*want) && !object) || given.is_any()
            })
        };
        let mut found = functions::named(name, member, args.len()).filter(fits);
        let function = found.next().filter(|_| elements_fit(name, args));
        let Some(function) = function else { return self.no_overload(node, name, member, args) };
        // Several ways to call it with what is known: the result is only known if they agree.
        let gives = function.gives;
        if args.iter().any(Ty::is_any) && found.any(|other| other.gives != gives) {
            return ANY;
        }
        let first = args.first().cloned().unwrap_or(ANY);
        match gives {
            Gives::Kind(Kind::Optional) => Ty::Optional(Box::new(ANY)),
            Gives::Kind(Kind::List) => Ty::List(Box::new(ANY)),
            Gives::Kind(kind) => Ty::Known(kind),
            Gives::Texts => Ty::List(Box::new(Ty::Known(Kind::Text))),
            Gives::Same => first,
            Gives::Inside => first.inside(),
            Gives::OptionalOf => Ty::Optional(Box::new(first)),
            Gives::OptionalInside => Ty::Optional(Box::new(first.inside())),
        }
    }

    fn comprehension(&mut self, node: &'a IdedExpr, loop_: &'a ComprehensionExpr) -> Ty<'a> {
        let range = self.expr(&loop_.iter_range);
        let text = Ty::Known(Kind::Text);
        let (first, second) = match (&range, loop_.iter_var2.is_some()) {
            (Ty::List(element), false) => (Ty::clone(element), ANY),
            (Ty::List(element), true) => (Ty::Known(Kind::Int), Ty::clone(element)),
            (Ty::Map(values), _) => (text, Ty::clone(values)),
            (ty, _) if ty.is_any() || matches!(ty, Ty::Known(Kind::Map | Kind::List)) => (ANY, ANY),
            (ty, _) => {
                let what = format!(
                    "expression of type '{ty}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.error(&loop_.iter_range, what);
                (ANY, ANY)
            }
        };
        let start = self.expr(&loop_.accu_init);
        let depth = self.variables.len();
        self.variables.push((&loop_.accu_var, start.clone()));
        self.variables.push((&loop_.iter_var, first));
        if let Some(name) = &loop_.iter_var2 {
            self.variables.push((name, second));
        }
        let condition = self.expr(&loop_.loop_cond);
        if !condition.is(Kind::Bool) {
            self.error(node, format!("expected type 'bool' but found '{condition}'"));
        }
        let step = self.expr(&loop_.loop_step);
        self.variables.truncate(depth);
        self.variables.push((&loop_.accu_var, start.join(step)));
        let result = self.expr(&loop_.result);
        self.variables.truncate(depth);
        result
    }
}

/// Whether the elements of lists are what a function of lists can work with.
fn elements_fit(name: &str, args: &[Ty<'_>]) -> bool {
    use Kind::{Any, Bool, Bytes, Double, Duration, Int, Text, Timestamp, UInt};
    let of = |fits: &[Kind]| args.first().is_none_or(|list| fits.contains(&list.inside().kind()));
    match (name, args) {
        ("isSorted" | "min" | "max" | "sort", [_]) => {
            of(&[Any, Int, UInt, Double, Bool, Duration, Timestamp, Text, Bytes])
        }
        ("sum", [_]) => of(&[Any, Int, UInt, Double, Duration]),
        ("sets.contains" | "sets.equivalent" | "sets.intersects", [a, b]) => a.comparable(b),
        _ => true,
    }
}

fn literal<'a>(value: &LiteralValue) -> Ty<'a> {
    Ty::Known(match value {
        LiteralValue::Boolean(_) => Kind::Bool,
        LiteralValue::Bytes(_) => Kind::Bytes,
        LiteralValue::Double(_) => Kind::Double,
        LiteralValue::Int(_) => Kind::Int,
        LiteralValue::UInt(_) => Kind::UInt,
        LiteralValue::String(_) => Kind::Text,
        LiteralValue::Null => return Ty::Null,
    })
}

/// The type that an operator gives; none if it does not take these.
fn operator<'a>(name: &str, args: &[Ty<'a>]) -> Option<Ty<'a>> {
    let bool_ = || Some(Ty::Known(Kind::Bool));
    let number = |ty: &Ty<'_>| ty.is(Kind::Int) || ty.is(Kind::UInt) || ty.is(Kind::Double);
    match (name, args) {
        (operators::LOGICAL_NOT, [a]) => a.is(Kind::Bool).then(bool_).flatten(),
        (operators::NOT_STRICTLY_FALSE, [_]) => bool_(),
        (operators::NEGATE, [a]) => (a.is(Kind::Int) || a.is(Kind::Double) || a.is(Kind::Duration)).then(|| a.clone()),
        (operators::CONDITIONAL, [condition, a, b]) => {
            (condition.is(Kind::Bool) && a.comparable(b)).then(|| a.clone().join(b.clone()))
        }
        (operators::EQUALS | operators::NOT_EQUALS, [a, b]) => a.comparable(b).then(bool_).flatten(),
        (operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS, [a, b]) => {
            let ordered = |kind: Kind| a.is(kind) && b.is(kind);
            let fits = (number(a) && number(b))
                || [Kind::Text, Kind::Bytes, Kind::Bool, Kind::Duration, Kind::Timestamp].into_iter().any(ordered);
            fits.then(bool_).flatten()
        }
        (operators::ADD, [a, b]) => added(a, b),
        (operators::SUBSTRACT, [a, b]) => match (a.kind(), b.kind()) {
            (Kind::Any, _) | (_, Kind::Any) => Some(ANY),
            (Kind::Timestamp, Kind::Timestamp) | (Kind::Duration, Kind::Duration) => Some(Ty::Known(Kind::Duration)),
            (Kind::Timestamp, Kind::Duration) => Some(Ty::Known(Kind::Timestamp)),
            (x, y) => (x == y && number(a)).then(|| a.clone()),
        },
        (operators::MULTIPLY | operators::DIVIDE, [a, b]) => arithmetic(a, b, number(a) && number(b)),
        (operators::MODULO, [a, b]) => arithmetic(a, b, number(a) && number(b) && a.kind() != Kind::Double),
        (operators::IN, [element, container]) => match container {
            Ty::List(inner) => element.comparable(inner).then(bool_).flatten(),
            ty if ty.is_any() || ty.kind() == Kind::Map => bool_(),
            _ => None,
        },
        (operators::INDEX, [container, key]) => indexed(container, key),
        (operators::OPT_INDEX, [container, key]) => indexed(container, key).map(|ty| Ty::Optional(Box::new(ty))),
        _ => None,
    }
}

fn arithmetic<'a>(a: &Ty<'a>, b: &Ty<'a>, numbers: bool) -> Option<Ty<'a>> {
    if a.is_any() || b.is_any() {
        return Some(ANY);
    }
    (numbers && a.kind() == b.kind()).then(|| a.clone())
}

fn added<'a>(a: &Ty<'a>, b: &Ty<'a>) -> Option<Ty<'a>> {
    match (a.kind(), b.kind()) {
        (Kind::Any, _) | (_, Kind::Any) => Some(ANY),
        (Kind::List, Kind::List) => a.comparable(b).then(|| a.clone().join(b.clone())),
        (Kind::Timestamp, Kind::Duration) | (Kind::Duration, Kind::Timestamp) => Some(Ty::Known(Kind::Timestamp)),
        (Kind::Int | Kind::UInt | Kind::Double | Kind::Text | Kind::Bytes | Kind::Duration, same) => {
            (a.kind() == same).then(|| a.clone())
        }
        _ => None,
    }
}

fn indexed<'a>(container: &Ty<'a>, key: &Ty<'a>) -> Option<Ty<'a>> {
    match container {
        Ty::List(element) => (key.is(Kind::Int) || key.is(Kind::UInt)).then(|| Ty::clone(element)),
        Ty::Map(values) => key.is(Kind::Text).then(|| Ty::clone(values)),
        Ty::Optional(inner) => indexed(inner, key),
        ty if ty.is_any() || matches!(ty, Ty::Known(Kind::Map | Kind::List)) => Some(ANY),
        _ => None,
    }
}
