//! How deep can the tree of an expression be? Answered from its tokens, before anything recurses over it.
//!
//! Every operator of a chain (`a + b + c`, `a.b.c`) may put the rest of the chain one level deeper, and so
//! does every bracket; commas and logical operators start new chains. The bound is the sum over the open
//! brackets, and is never too low.

/// The parser descends through its whole grammar for every bracket, and only one step for an operator.
const BRACKET: usize = 3;

/// An upper bound of the depth of the tree that `source` parses to.
pub(super) fn depth_bound(source: &str) -> usize {
    // Operators of the chain that is being read, of those around it, and of both together.
    let (mut current, mut around) = (0_usize, Vec::new());
    let (mut sum, mut deepest) = (0_usize, 0);
    for token in Tokens(source) {
        match token {
            "" => {}
            "(" | "[" | "{" => {
                around.push(current + BRACKET);
                sum += BRACKET;
                current = 0;
            }
            ")" | "]" | "}" => {
                sum -= current;
                // A bracket that closes nothing is an error; what it would have closed still counts.
                current = around.pop().unwrap_or_default();
            }
            "," | "&&" | "||" => {
                sum = sum - current + 1;
                current = 1;
            }
            _ => {
                current += 1;
                sum += 1;
            }
        }
        deepest = deepest.max(sum);
    }
    deepest
}

/// The tokens that matter: brackets, operators, separators. What is between them is an empty token.
struct Tokens<'a>(&'a str);

impl<'a> Tokens<'a> {
    fn take(&mut self, bytes: usize) -> &'a str {
        let (token, rest) = self.0.split_at(bytes);
        self.0 = rest;
        token
    }

    fn skip(&mut self, bytes: usize) -> &'a str {
        self.take(bytes);
        ""
    }

    /// The length of the text literal that starts with these quotes.
    fn literal(&self, raw: bool) -> usize {
        let text = self.0;
        let quote = &text[..1];
        let triple = quote.repeat(3);
        let (close, start) = if text.starts_with(&triple) { (triple.as_str(), 3) } else { (quote, 1) };
        let mut at = start;
        while at < text.len() {
            let rest = &text[at..];
            if rest.starts_with(close) {
                return at + close.len();
            }
            let step = rest.chars().next().map_or(1, char::len_utf8);
            let escaped = rest.starts_with('\\') && !raw;
            at += step + if escaped { rest[step..].chars().next().map_or(0, char::len_utf8) } else { 0 };
        }
        text.len()
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let first = self.0.chars().next()?;
        if first.is_ascii_alphabetic() || first == '_' {
            let end = self.0.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.0.len());
            let word = self.take(end);
            let prefix = word.len() <= 2 && word.chars().all(|c| matches!(c, 'r' | 'R' | 'b' | 'B'));
            if prefix && self.0.starts_with(['"', '\'']) {
                let raw = word.contains(['r', 'R']);
                return Some(self.skip(self.literal(raw)));
            }
            return Some(if word == "in" { word } else { "" });
        }
        if matches!(first, '"' | '\'') {
            return Some(self.skip(self.literal(false)));
        }
        if first == '`' {
            let end = self.0[1..].find('`').map_or(self.0.len(), |at| at + 2);
            return Some(self.skip(end));
        }
        if self.0.starts_with("//") {
            let end = self.0.find('\n').unwrap_or(self.0.len());
            return Some(self.skip(end));
        }
        if self.0.starts_with("&&") || self.0.starts_with("||") {
            return Some(self.take(2));
        }
        let token = self.take(first.len_utf8());
        Some(if "()[]{},.+-*/%<>=!?:".contains(first) { token } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use cel::common::ast::IdedExpr;
    use proptest::prelude::*;

    use super::*;
    use crate::schema::cel::program;

    #[test]
    fn texts_and_comments_do_not_count() {
        assert_eq!(depth_bound("'a.b.c(((' + \"...\" // + + + \n + r'\\' + b'''(\n('''"), 3);
        assert_eq!(depth_bound("a && b && c"), 1);
        assert_eq!(depth_bound("f(a.b, c.d)"), BRACKET + 2);
    }

    fn depth(expr: &IdedExpr) -> usize {
        let mut deepest = 0;
        program::children(&expr.expr, &mut |child| deepest = deepest.max(depth(child)));
        deepest + 1
    }

    proptest! {
        #[test]
        fn the_bound_is_never_too_low(
            text in r"(a|\.b|\(|\)|\[1\]| \+ |-1| == | && | \|\| |!|'x.y'|r'\\'|, |\.size\(\)| \? | : | in |f\(){1,16}"
        ) {
            if let Ok(program) = program::parse(&text) {
                // Macros expand to a few levels of their own; none is written here.
                prop_assert!(depth(program.expression()) <= 2 * depth_bound(&text) + 2);
            }
        }
    }
}
