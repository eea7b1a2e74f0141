//! Surface forms: the same problem in different words, from one changed word to another structure and order.

use super::problem::{Expression, Name, Operand, Operation, Problem, Statement};
use super::vocabulary::name_text;

/// How the statements are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wording {
    /// `let c = e + f ;`
    Let,
    /// As [`Wording::Let`] with one word changed: `set c = e + f ;`
    Set,
    /// In words: `c is e plus f .`
    Words,
    /// Expression first: `e + f gives c ;`
    Gives,
    /// Imperative: `take e , plus f , call c ;`
    Take,
    /// As [`Wording::Let`] without the word, and the question comes first.
    Asked,
    /// All constants first, then the operations: `given e = 3 , f = 5 ; then c = e + f , …`
    Given,
    /// Operator first: `c : plus e f ;`
    Prefix,
}

/// All wordings; the position is stable.
pub const WORDINGS: [Wording; 8] = [
    Wording::Let,
    Wording::Set,
    Wording::Words,
    Wording::Gives,
    Wording::Take,
    Wording::Asked,
    Wording::Given,
    Wording::Prefix,
];

/// A suffix between the question and the work: it changes tokens, not the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint(pub &'static str);

/// All hints; the first is empty.
pub const HINTS: [Hint; 6] = [
    Hint(""),
    Hint("think step by step ."),
    Hint("be careful ."),
    Hint("go slowly ."),
    Hint("show everything ."),
    Hint("check each step ."),
];

impl Problem {
    /// What the model reads before it writes the chain of thought.
    #[must_use]
    pub fn prompt(&self, wording: Wording, hint: Hint) -> String {
        let body = self.body(wording);
        let hint = if hint.0.is_empty() { String::new() } else { format!(" {}", hint.0) };
        format!("solve : {body}{hint} work :")
    }

    /// Statements in the order in which this wording writes them; the chain of thought follows it.
    #[must_use]
    pub fn ordered(&self, wording: Wording) -> Vec<Statement> {
        let mut statements = self.statements.clone();
        if wording == Wording::Given {
            // Stable, so that each part keeps its order.
            statements.sort_by_key(|s| !matches!(s.expression, Expression::Constant(_)));
        }
        statements
    }

    /// Statements and question.
    pub(super) fn body(&self, wording: Wording) -> String {
        let statements = self.ordered(wording);
        let question = name_text(self.question);
        let text: Vec<String> = statements.iter().map(|s| statement_text(*s, wording)).collect();
        match wording {
            Wording::Asked => format!("find {question} ? {}", text.join(" ")),
            Wording::Given => format!("given {} find {question} ?", given_text(&statements, &text)),
            Wording::Words | Wording::Gives => format!("{} what is {question} ?", text.join(" ")),
            _ => format!("{} find {question} ?", text.join(" ")),
        }
    }
}

/// Commas within the two parts, a semicolon after each.
fn given_text(statements: &[Statement], text: &[String]) -> String {
    let constants = statements.iter().filter(|s| matches!(s.expression, Expression::Constant(_))).count();
    let (given, then) = text.split_at(constants);
    format!("{} ; then {} ;", given.join(" , "), then.join(" , "))
}

fn statement_text(statement: Statement, wording: Wording) -> String {
    let target = name_text(statement.target);
    match statement.expression {
        Expression::Constant(digit) => constant_text(target, digit, wording),
        Expression::Binary { left, operation, right } => binary_text(target, left, operation, right, wording),
    }
}

fn constant_text(target: &str, digit: u8, wording: Wording) -> String {
    match wording {
        Wording::Let => format!("let {target} = {digit} ;"),
        Wording::Set => format!("set {target} = {digit} ;"),
        Wording::Words => format!("{target} is {digit} ."),
        Wording::Gives => format!("{digit} gives {target} ;"),
        Wording::Take => format!("take {digit} , call {target} ;"),
        Wording::Asked => format!("{target} = {digit} ;"),
        Wording::Given => format!("{target} = {digit}"),
        Wording::Prefix => format!("{target} : {digit} ;"),
    }
}

fn binary_text(target: &str, left: Name, operation: Operation, right: Operand, wording: Wording) -> String {
    let left = name_text(left);
    let right = operand_text(right);
    let sign = operation.sign();
    let word = operation.word();
    match wording {
        Wording::Let => format!("let {target} = {left} {sign} {right} ;"),
        Wording::Set => format!("set {target} = {left} {sign} {right} ;"),
        Wording::Words => format!("{target} is {left} {word} {right} ."),
        Wording::Gives => format!("{left} {sign} {right} gives {target} ;"),
        Wording::Take => format!("take {left} , {word} {right} , call {target} ;"),
        Wording::Asked => format!("{target} = {left} {sign} {right} ;"),
        Wording::Given => format!("{target} = {left} {sign} {right}"),
        Wording::Prefix => format!("{target} : {word} {left} {right} ;"),
    }
}

/// A name or a digit.
pub(super) fn operand_text(operand: Operand) -> String {
    match operand {
        Operand::Variable(name) => name_text(name).to_owned(),
        Operand::Literal(digit) => digit.to_string(),
    }
}

impl Operation {
    /// The symbol, as the chain of thought writes it.
    #[must_use]
    pub fn sign(self) -> &'static str {
        match self {
            Self::Plus => "+",
            Self::Minus => "-",
            Self::Times => "*",
        }
    }

    /// The word, as some wordings write it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Plus => "plus",
            Self::Minus => "minus",
            Self::Times => "times",
        }
    }
}
