//! Words of a label selector: identifiers, keywords, operators.

/// What kind of word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Identifier,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

/// One word and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) token: Token,
    pub(super) text: String,
}

/// All words of `text`, ended by [`Token::End`].
pub(super) fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while let Some(first) = rest.chars().next() {
        let (token, length) = special(first, rest).unwrap_or_else(|| identifier(rest));
        words.push(Word { token, text: rest[..length].to_owned() });
        rest = rest[length..].trim_start_matches(is_space);
    }
    words.push(Word { token: Token::End, text: String::new() });
    words
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn is_special(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn identifier(rest: &str) -> (Token, usize) {
    let length = rest.find(|c| is_special(c) || is_space(c)).unwrap_or(rest.len());
    let token = match &rest[..length] {
        "in" => Token::In,
        "notin" => Token::NotIn,
        _ => Token::Identifier,
    };
    (token, length)
}

/// The longest operator at the start of `rest`, if it starts with one.
fn special(first: char, rest: &str) -> Option<(Token, usize)> {
    Some(match first {
        '=' if rest.starts_with("==") => (Token::DoubleEquals, 2),
        '=' => (Token::Equals, 1),
        '!' if rest.starts_with("!=") => (Token::NotEquals, 2),
        '!' => (Token::Not, 1),
        '(' => (Token::Open, 1),
        ')' => (Token::Close, 1),
        ',' => (Token::Comma, 1),
        '>' => (Token::Greater, 1),
        '<' => (Token::Less, 1),
        _ => return None,
    })
}
