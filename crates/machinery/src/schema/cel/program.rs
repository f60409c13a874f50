//! From the text of a rule to the tree that is evaluated, and the macros that Kubernetes adds.
//!
//! The parser is that of the `cel` crate; the evaluator is not. A rule comes from a client and runs on
//! every write, so each step has to be counted, and values have to be seen through their schema
//! without copying the object: the crate's interpreter offers neither.

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr, operators};
use cel::parser::{Macro, MacroExprHelper, ParseError};
use cel::{DeclarationError, Env, Program};

use super::depth::depth_bound;

/// Bytes of one expression: far above what rules in the wild need, low enough to parse without a thought.
pub(super) const MAX_EXPRESSION_BYTES: usize = 16 * 1024;
/// Expressions inside expressions. Every walk over the tree is recursive, the parser's included; at this depth it
/// takes a quarter of the 2 MiB that a thread has, unoptimised.
pub(super) const MAX_DEPTH: usize = 100;
const TOO_LARGE: &str = "ERROR: <input>:1:1: expression recursion limit exceeded: 100";
/// Nodes of one tree.
const MAX_NODES: usize = 10_000;

/// Appends to the accumulator of `transformMap`; no rule can write this name.
pub(super) const MAP_INSERT: &str = "@mapInsert";
/// The same, with a map of entries for each turn of `transformMapEntry`.
pub(super) const MAP_MERGE: &str = "@mapMerge";
pub(super) const SORT_BY_KEYS: &str = "@sortByAssociatedKeys";

/// A compiled expression, kept with the rule from its first use on.
#[derive(Clone, Default)]
pub(crate) struct Cached(OnceLock<Arc<Result<Program, String>>>);

impl Cached {
    pub(super) fn get(&self, source: &str) -> &Arc<Result<Program, String>> {
        self.0.get_or_init(|| Arc::new(parse(source)))
    }
}

/// What was compiled says nothing that the source does not.
impl PartialEq for Cached {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Parses an expression; the error is the parser's text.
pub(super) fn parse(source: &str) -> Result<Program, String> {
    static ENV: LazyLock<Env> = LazyLock::new(|| environment().expect("the macros must be distinct"));
    if source.len() > MAX_EXPRESSION_BYTES {
        return Err(format!(
            "ERROR: <input>:1:1: expression code point size exceeds limit: size: {}, limit {MAX_EXPRESSION_BYTES}",
            source.len()
        ));
    }
    // The parser recurses once for every operator of a chain: it must not see one that is too long.
    if depth_bound(source) > MAX_DEPTH {
        return Err(TOO_LARGE.to_owned());
    }
    let program = ENV.compile(source).map_err(|errors| errors.to_string())?;
    bounded(program.expression())?;
    Ok(program)
}

fn environment() -> Result<Env, DeclarationError> {
    let mut env = Env::stdlib();
    env.add_macro(Macro::receiver("sortBy", 2, sort_by))?;
    env.add_macro(Macro::receiver("all", 3, |h, t, a| two_variables(h, t, a, Quantifier::All)))?;
    env.add_macro(Macro::receiver("exists", 3, |h, t, a| two_variables(h, t, a, Quantifier::Exists)))?;
    for name in ["existsOne", "exists_one"] {
        env.add_macro(Macro::receiver(name, 3, |h, t, a| two_variables(h, t, a, Quantifier::One)))?;
    }
    for arguments in [3, 4] {
        env.add_macro(Macro::receiver("transformList", arguments, |h, t, a| transform(h, t, a, Into::List)))?;
        env.add_macro(Macro::receiver("transformMap", arguments, |h, t, a| transform(h, t, a, Into::Map)))?;
        env.add_macro(Macro::receiver("transformMapEntry", arguments, |h, t, a| transform(h, t, a, Into::Entries)))?;
    }
    Ok(env)
}

/// Walks the tree once, with a stack of its own, so that everything after may recurse.
fn bounded(root: &IdedExpr) -> Result<(), String> {
    let mut stack = vec![(root, 1)];
    let mut nodes = 0;
    while let Some((node, depth)) = stack.pop() {
        nodes += 1;
        if depth > MAX_DEPTH || nodes > MAX_NODES {
            return Err(TOO_LARGE.to_owned());
        }
        children(&node.expr, &mut |child| stack.push((child, depth + 1)));
    }
    Ok(())
}

/// Calls `visit` with every expression directly inside `expr`.
pub(super) fn children<'e>(expr: &'e Expr, visit: &mut dyn FnMut(&'e IdedExpr)) {
    use cel::common::ast::EntryExpr;
    let entries = |entries: &'e [cel::common::ast::IdedEntryExpr], visit: &mut dyn FnMut(&'e IdedExpr)| {
        for entry in entries {
            match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    visit(&entry.key);
                    visit(&entry.value);
                }
                EntryExpr::StructField(field) => visit(&field.value),
            }
        }
    };
    match expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
        Expr::Call(call) => {
            call.target.iter().for_each(|target| visit(target));
            call.args.iter().for_each(visit);
        }
        Expr::Comprehension(loop_) => {
            for part in [&loop_.iter_range, &loop_.accu_init, &loop_.loop_cond, &loop_.loop_step, &loop_.result] {
                visit(part);
            }
        }
        Expr::List(list) => list.elements.iter().for_each(visit),
        Expr::Map(map) => entries(&map.entries, visit),
        Expr::Struct(value) => entries(&value.entries, visit),
        Expr::Select(select) => visit(&select.operand),
    }
}

/// Whether a variable is mentioned anywhere.
pub(super) fn mentions(root: &IdedExpr, name: &str) -> bool {
    let mut stack = vec![root];
    while let Some(node) = stack.pop() {
        if matches!(&node.expr, Expr::Ident(ident) if ident == name) {
            return true;
        }
        children(&node.expr, &mut |child| stack.push(child));
    }
    false
}

/// The dotted name that a chain of selections spells, with its first part: `net.IP`, `net`.
pub(super) fn qualified_name(expr: &Expr) -> Option<(String, &str)> {
    let mut parts = Vec::new();
    let mut at = expr;
    loop {
        match at {
            Expr::Select(select) if !select.test => {
                parts.push(select.field.as_str());
                at = &select.operand.expr;
            }
            Expr::Ident(root) => {
                parts.push(root);
                parts.reverse();
                return Some((parts.join("."), root));
            }
            _ => return None,
        }
    }
}

type Expanded = Result<Option<IdedExpr>, ParseError>;

fn identifier(helper: &MacroExprHelper<'_>, expr: &IdedExpr) -> Result<String, ParseError> {
    match &expr.expr {
        Expr::Ident(name) => Ok(name.clone()),
        _ => Err(helper.new_error(expr.id, "argument must be a simple name")),
    }
}

fn call(helper: &mut MacroExprHelper<'_>, function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    helper.next_expr(Expr::Call(CallExpr { func_name: function.to_owned(), target: None, args }))
}

fn ident(helper: &mut MacroExprHelper<'_>, name: &str) -> IdedExpr {
    helper.next_expr(Expr::Ident(name.to_owned()))
}

fn literal(helper: &mut MacroExprHelper<'_>, value: LiteralValue) -> IdedExpr {
    helper.next_expr(Expr::Literal(value))
}

const ACCUMULATOR: &str = "@result";

#[derive(Clone, Copy, PartialEq)]
enum Quantifier {
    All,
    Exists,
    One,
}

/// `list.all(index, value, p)` and its like, over lists (index and value) and maps (key and value).
fn two_variables(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
    quantifier: Quantifier,
) -> Expanded {
    let (first, second) = (identifier(helper, &args[0])?, identifier(helper, &args[1])?);
    let (Some(predicate), Some(range)) = (args.pop(), target.take()) else { return Ok(None) };
    let accumulator = ident(helper, ACCUMULATOR);
    let again = ident(helper, ACCUMULATOR);
    let (init, cond, step, result);
    match quantifier {
        Quantifier::All | Quantifier::Exists => {
            let all = quantifier == Quantifier::All;
            init = literal(helper, LiteralValue::Boolean(all.into()));
            let kept = if all { again } else { call(helper, operators::LOGICAL_NOT, vec![again]) };
            cond = call(helper, operators::NOT_STRICTLY_FALSE, vec![kept]);
            let operator = if all { operators::LOGICAL_AND } else { operators::LOGICAL_OR };
            step = call(helper, operator, vec![accumulator, predicate]);
            result = ident(helper, ACCUMULATOR);
        }
        Quantifier::One => {
            init = literal(helper, LiteralValue::Int(0.into()));
            cond = literal(helper, LiteralValue::Boolean(true.into()));
            let one = literal(helper, LiteralValue::Int(1.into()));
            let more = call(helper, operators::ADD, vec![accumulator, one]);
            step = call(helper, operators::CONDITIONAL, vec![predicate, more, again]);
            let counted = ident(helper, ACCUMULATOR);
            let one = literal(helper, LiteralValue::Int(1.into()));
            result = call(helper, operators::EQUALS, vec![counted, one]);
        }
    }
    Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: range,
        iter_var: first,
        iter_var2: Some(second),
        accu_var: ACCUMULATOR.to_owned(),
        accu_init: init,
        loop_cond: cond,
        loop_step: step,
        result,
    })))))
}

#[derive(Clone, Copy, PartialEq)]
enum Into {
    List,
    Map,
    Entries,
}

/// `map.transformList(k, v, [filter,] e)`, `map.transformMap(k, v, [filter,] e)` and, where `e` is a map of new
/// entries, `map.transformMapEntry(k, v, [filter,] e)`.
fn transform(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
    into: Into,
) -> Expanded {
    let (first, second) = (identifier(helper, &args[0])?, identifier(helper, &args[1])?);
    let (Some(value), Some(range)) = (args.pop(), target.take()) else { return Ok(None) };
    let filter = (args.len() == 3).then(|| args.pop()).flatten();
    let accumulator = ident(helper, ACCUMULATOR);
    let (init, mut step);
    if into == Into::List {
        init = helper.next_expr(Expr::List(ListExpr::new(Vec::new())));
        let one = helper.next_expr(Expr::List(ListExpr::new(vec![value])));
        step = call(helper, operators::ADD, vec![accumulator, one]);
    } else {
        init = helper.next_expr(Expr::Map(MapExpr { entries: Vec::new() }));
        step = if into == Into::Map {
            let key = ident(helper, &first);
            call(helper, MAP_INSERT, vec![accumulator, key, value])
        } else {
            call(helper, MAP_MERGE, vec![accumulator, value])
        };
    }
    if let Some(filter) = filter {
        let unchanged = ident(helper, ACCUMULATOR);
        step = call(helper, operators::CONDITIONAL, vec![filter, step, unchanged]);
    }
    let cond = literal(helper, LiteralValue::Boolean(true.into()));
    let result = ident(helper, ACCUMULATOR);
    Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: range,
        iter_var: first,
        iter_var2: Some(second),
        accu_var: ACCUMULATOR.to_owned(),
        accu_init: init,
        loop_cond: cond,
        loop_step: step,
        result,
    })))))
}

/// `list.sortBy(e, key)`: the list, and the list of keys, given to a function that sorts one by the other.
fn sort_by(helper: &mut MacroExprHelper<'_>, target: &mut Option<IdedExpr>, args: &mut Vec<IdedExpr>) -> Expanded {
    let variable = identifier(helper, &args[0])?;
    let (Some(key), Some(list)) = (args.pop(), target.take()) else { return Ok(None) };
    let accumulator = ident(helper, ACCUMULATOR);
    let one = helper.next_expr(Expr::List(ListExpr::new(vec![key])));
    let step = call(helper, operators::ADD, vec![accumulator, one]);
    let init = helper.next_expr(Expr::List(ListExpr::new(Vec::new())));
    let cond = literal(helper, LiteralValue::Boolean(true.into()));
    let result = ident(helper, ACCUMULATOR);
    let keys = helper.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: list.clone(),
        iter_var: variable,
        iter_var2: None,
        accu_var: ACCUMULATOR.to_owned(),
        accu_init: init,
        loop_cond: cond,
        loop_step: step,
        result,
    })));
    Ok(Some(call(helper, SORT_BY_KEYS, vec![list, keys])))
}
