//! Evaluating an expression, one counted step at a time.

use std::collections::BTreeMap;
use std::rc::Rc;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr, operators,
};
use regex::Regex;

use super::functions;
use super::operators as ops;
use super::program::{MAP_INSERT, MAP_MERGE, qualified_name};
use super::value::{Fault, List, Map, Outcome, Val};
use crate::schema::pattern;

/// Distinct expressions that one rule may match with; they are kept while it runs.
const MAX_PATTERNS: usize = 64;

/// What a rule has spent, and what it may spend. One unit is about one step of the evaluator, or ten bytes
/// of text that a function looks at.
pub(super) struct Meter {
    used: u64,
    limit: u64,
    patterns: BTreeMap<String, Rc<Regex>>,
}

impl Meter {
    pub(super) fn new(limit: u64) -> Self {
        Self { used: 0, limit, patterns: BTreeMap::new() }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn charge(&mut self, cost: u64) -> Outcome<()> {
        self.used = self.used.saturating_add(cost);
        if self.used > self.limit { Err(Fault::CostLimit) } else { Ok(()) }
    }

    /// Charges for reading `text` once.
    pub(super) fn read(&mut self, text: &str) -> Outcome<()> {
        self.charge(1 + text.len() as u64 / 10)
    }

    pub(super) fn pattern(&mut self, source: &str) -> Outcome<Rc<Regex>> {
        if let Some(known) = self.patterns.get(source) {
            return Ok(Rc::clone(known));
        }
        // Compiling costs far more than matching.
        self.charge(100 + source.len() as u64)?;
        let compiled = Rc::new(pattern::compile(source).map_err(Fault::Error)?);
        if self.patterns.len() < MAX_PATTERNS {
            self.patterns.insert(source.to_owned(), Rc::clone(&compiled));
        }
        Ok(compiled)
    }
}

/// One evaluation: the variables that are in scope, innermost last, and the meter.
pub(super) struct Eval<'a, 'm> {
    /// A variable may hold an error: that of a loop which goes on and may still come to a result.
    variables: Vec<(&'a str, Outcome<Val<'a>>)>,
    meter: &'m mut Meter,
}

impl<'a, 'm> Eval<'a, 'm> {
    pub(super) fn new(variables: Vec<(&'a str, Val<'a>)>, meter: &'m mut Meter) -> Self {
        Self { variables: variables.into_iter().map(|(name, value)| (name, Ok(value))).collect(), meter }
    }

    pub(super) fn run(&mut self, expr: &'a IdedExpr) -> Outcome<Val<'a>> {
        self.meter.charge(1)?;
        match &expr.expr {
            Expr::Literal(value) => Ok(literal(value)),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => {
                if let Some(name) = self.type_name(&expr.expr) {
                    return Ok(Val::Type(name));
                }
                let operand = self.run(&select.operand)?;
                if select.test { ops::has(&operand, &select.field) } else { ops::select(&operand, &select.field) }
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(map),
            Expr::Comprehension(loop_) => self.comprehension(loop_),
            Expr::Struct(_) | Expr::Unspecified => Err(Fault::new("unsupported expression")),
        }
    }

    fn variable(&self, name: &str) -> Outcome<Val<'a>> {
        let found = self.variables.iter().rev().find(|(known, _)| *known == name);
        match found {
            Some((_, value)) => value.clone(),
            None => functions::type_named(name)
                .map(Val::Type)
                .ok_or_else(|| Fault::new(format!("undeclared reference to '{name}'"))),
        }
    }

    /// The type that a dotted name means, unless it starts with a variable.
    fn type_name(&self, expr: &Expr) -> Option<&'static str> {
        let (name, root) = qualified_name(expr).filter(|(_, root)| functions::is_package(root))?;
        functions::type_named(&name).filter(|_| !self.is_variable(root))
    }

    fn is_variable(&self, name: &str) -> bool {
        self.variables.iter().any(|(known, _)| *known == name)
    }

    fn call(&mut self, call: &'a CallExpr) -> Outcome<Val<'a>> {
        let args = &call.args;
        match (call.func_name.as_str(), call.target.as_deref(), args.len()) {
            (operators::LOGICAL_AND, None, 2) => self.logical(&args[0], &args[1], false),
            (operators::LOGICAL_OR, None, 2) => self.logical(&args[0], &args[1], true),
            (operators::CONDITIONAL, None, 3) => match self.run(&args[0])? {
                Val::Bool(true) => self.run(&args[1]),
                Val::Bool(false) => self.run(&args[2]),
                _ => Err(Fault::no_such_overload()),
            },
            (operators::NOT_STRICTLY_FALSE, None, 1) => match self.run(&args[0]) {
                Ok(Val::Bool(flag)) => Ok(Val::Bool(flag)),
                Ok(_) | Err(Fault::Error(_)) => Ok(Val::Bool(true)),
                Err(fault) => Err(fault),
            },
            (name, None, _) if is_operator(name) => {
                let values = self.all(None, args)?;
                ops::apply(name, &values, self.meter)
            }
            (name, target, _) => {
                // `ip.isCanonical(x)` is a function of that name, unless there is a variable `ip`.
                if let Some(IdedExpr { expr: Expr::Ident(namespace), .. }) = target
                    && functions::is_namespace(namespace)
                    && !self.is_variable(namespace)
                {
                    let values = self.all(None, args)?;
                    return functions::call(&format!("{namespace}.{name}"), false, &values, self.meter);
                }
                let values = self.all(target, args)?;
                functions::call(name, target.is_some(), &values, self.meter)
            }
        }
    }

    fn all(&mut self, target: Option<&'a IdedExpr>, args: &'a [IdedExpr]) -> Outcome<Vec<Val<'a>>> {
        target.into_iter().chain(args).map(|arg| self.run(arg)).collect()
    }

    /// `&&` and `||`: one side that decides is enough, even if the other is an error.
    fn logical(&mut self, left: &'a IdedExpr, right: &'a IdedExpr, deciding: bool) -> Outcome<Val<'a>> {
        let decides = |side: &Outcome<Val<'a>>| matches!(side, Ok(Val::Bool(flag)) if *flag == deciding);
        let left = self.run(left);
        if decides(&left) || matches!(left, Err(Fault::CostLimit)) {
            return left;
        }
        let right = self.run(right);
        if decides(&right) || matches!(right, Err(Fault::CostLimit)) {
            return right;
        }
        match (left?, right?) {
            (Val::Bool(_), Val::Bool(_)) => Ok(Val::Bool(!deciding)),
            _ => Err(Fault::no_such_overload()),
        }
    }

    fn list(&mut self, list: &'a ListExpr) -> Outcome<Val<'a>> {
        let mut items = Vec::with_capacity(list.elements.len());
        for (index, element) in list.elements.iter().enumerate() {
            let value = self.run(element)?;
            if !list.optional_indices.contains(&index) {
                items.push(value);
                continue;
            }
            match value {
                Val::Optional(Some(inner)) => items.push(Val::clone(&inner)),
                Val::Optional(None) => {}
                _ => return Err(Fault::no_such_overload()),
            }
        }
        Ok(Val::list(items))
    }

    fn map(&mut self, map: &'a MapExpr) -> Outcome<Val<'a>> {
        let mut entries: Vec<(Val<'a>, Val<'a>)> = Vec::with_capacity(map.entries.len());
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else { return Err(Fault::new("unsupported expression")) };
            let (key, mut value) = (self.run(&entry.key)?, self.run(&entry.value)?);
            if entry.optional {
                match value {
                    Val::Optional(Some(inner)) => value = Val::clone(&inner),
                    Val::Optional(None) => continue,
                    _ => return Err(Fault::no_such_overload()),
                }
            }
            ops::insert(&mut entries, key, value, self.meter)?;
        }
        Ok(Val::Map(Map::Own(Rc::new(entries))))
    }

    fn comprehension(&mut self, loop_: &'a ComprehensionExpr) -> Outcome<Val<'a>> {
        let range = self.run(&loop_.iter_range)?;
        let start = self.run(&loop_.accu_init)?;
        let depth = self.variables.len();
        self.variables.push((&loop_.accu_var, Ok(start)));
        let result = self.iterate(loop_, &range, depth);
        let result = result.and_then(|()| {
            self.variables.truncate(depth + 1);
            self.run(&loop_.result)
        });
        self.variables.truncate(depth);
        result
    }

    fn iterate(&mut self, loop_: &'a ComprehensionExpr, range: &Val<'a>, accumulator: usize) -> Outcome<()> {
        match range {
            Val::List(list) => {
                for index in 0..list.len() {
                    let item = item(list, index);
                    let values = match loop_.iter_var2 {
                        None => (item, None),
                        Some(_) => (Ok(Val::Int(index as i64)), Some(item)),
                    };
                    if !self.turn(loop_, values, accumulator)? {
                        break;
                    }
                }
                Ok(())
            }
            Val::Map(map) => {
                for key in map.keys() {
                    let value = loop_.iter_var2.as_ref().map(|_| map.get(&key).unwrap_or(Ok(Val::Null)));
                    if !self.turn(loop_, (Ok(key), value), accumulator)? {
                        break;
                    }
                }
                Ok(())
            }
            _ => Err(Fault::no_such_overload()),
        }
    }

    /// One turn of a loop; false once it need not go on.
    fn turn(
        &mut self,
        loop_: &'a ComprehensionExpr,
        (first, second): (Outcome<Val<'a>>, Option<Outcome<Val<'a>>>),
        accumulator: usize,
    ) -> Outcome<bool> {
        self.meter.charge(1)?;
        self.variables.truncate(accumulator + 1);
        self.variables.push((&loop_.iter_var, first));
        if let (Some(name), Some(value)) = (&loop_.iter_var2, second) {
            self.variables.push((name, value));
        }
        match self.run(&loop_.loop_cond) {
            Ok(Val::Bool(false)) => return Ok(false),
            Err(Fault::CostLimit) => return Err(Fault::CostLimit),
            _ => {}
        }
        let step = self.step(&loop_.loop_step, accumulator);
        if matches!(step, Err(Fault::CostLimit)) {
            return Err(Fault::CostLimit);
        }
        self.variables[accumulator].1 = step;
        Ok(true)
    }

    /// The next value of the accumulator. A list that only grows is grown in place: adding to a copy
    /// each time would make every `map` and `filter` quadratic.
    fn step(&mut self, expr: &'a IdedExpr, accumulator: usize) -> Outcome<Val<'a>> {
        let name = self.variables[accumulator].0;
        let is_accumulator = |expr: &IdedExpr| matches!(&expr.expr, Expr::Ident(ident) if ident == name);
        let Expr::Call(call) = &expr.expr else { return self.run(expr) };
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::CONDITIONAL, [condition, then, otherwise]) if is_accumulator(otherwise) => {
                match self.run(condition)? {
                    Val::Bool(true) => self.step(then, accumulator),
                    Val::Bool(false) => self.take(accumulator),
                    _ => Err(Fault::no_such_overload()),
                }
            }
            (operators::ADD, [left, IdedExpr { expr: Expr::List(list), .. }])
                if is_accumulator(left) && list.optional_indices.is_empty() =>
            {
                let mut added = Vec::with_capacity(list.elements.len());
                for element in &list.elements {
                    added.push(self.run(element)?);
                }
                match self.take(accumulator)? {
                    Val::List(List::Own(mut items, kind)) => {
                        Rc::make_mut(&mut items).extend(added);
                        Ok(Val::List(List::Own(items, kind)))
                    }
                    other => ops::apply(operators::ADD, &[other, Val::list(added)], self.meter),
                }
            }
            (MAP_INSERT, [left, key, value]) if is_accumulator(left) => {
                let (key, value) = (self.run(key)?, self.run(value)?);
                match self.take(accumulator)? {
                    Val::Map(Map::Own(mut entries)) => {
                        ops::insert(Rc::make_mut(&mut entries), key, value, self.meter)?;
                        Ok(Val::Map(Map::Own(entries)))
                    }
                    _ => Err(Fault::no_such_overload()),
                }
            }
            (MAP_MERGE, [left, added]) if is_accumulator(left) => {
                let Val::Map(added) = self.run(added)? else { return Err(Fault::no_such_overload()) };
                let Val::Map(Map::Own(mut entries)) = self.take(accumulator)? else {
                    return Err(Fault::no_such_overload());
                };
                for key in added.keys() {
                    let value = added.get(&key).unwrap_or(Ok(Val::Null))?;
                    ops::insert(Rc::make_mut(&mut entries), key, value, self.meter)?;
                }
                Ok(Val::Map(Map::Own(entries)))
            }
            _ => self.run(expr),
        }
    }

    fn take(&mut self, accumulator: usize) -> Outcome<Val<'a>> {
        std::mem::replace(&mut self.variables[accumulator].1, Ok(Val::Null))
    }
}

fn item<'a>(list: &List<'a>, index: usize) -> Outcome<Val<'a>> {
    list.get(index).unwrap_or_else(|| Err(Fault::new(format!("index out of bounds: {index}"))))
}

/// Whether the parser made this call of an operator: no function is called like that.
pub(super) fn is_operator(name: &str) -> bool {
    use operators::{CONDITIONAL, IN, INDEX, LOGICAL_NOT, NEGATE, NOT_STRICTLY_FALSE, OPT_INDEX, OPT_SELECT};
    let binary = name.len() >= 3 && name.starts_with('_') && name.ends_with('_');
    binary || [CONDITIONAL, IN, INDEX, LOGICAL_NOT, NEGATE, NOT_STRICTLY_FALSE, OPT_INDEX, OPT_SELECT].contains(&name)
}

fn literal(value: &LiteralValue) -> Val<'_> {
    match value {
        LiteralValue::Boolean(flag) => Val::Bool(*flag.inner()),
        LiteralValue::Bytes(bytes) => Val::Bytes(bytes.inner().into()),
        LiteralValue::Double(number) => Val::Double(*number.inner()),
        LiteralValue::Int(number) => Val::Int(*number.inner()),
        LiteralValue::UInt(number) => Val::UInt(*number.inner()),
        LiteralValue::String(text) => Val::text(text.inner()),
        LiteralValue::Null => Val::Null,
    }
}
