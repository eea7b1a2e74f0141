//! The chain of thought: one step per statement, each operand's value beside its name, then the answer.

use super::problem::{Digit, Expression, Operand, Problem, Statement, values};
use super::vocabulary::name_text;
use super::wording::{Wording, operand_text};

impl Problem {
    /// The text the model should write after [`Problem::prompt`] of the same wording, without the end token.
    #[must_use]
    pub fn solution(&self, wording: Wording) -> String {
        let known = values(&self.statements);
        let value = |name: super::Name| known[usize::from(name.0)];
        let mut words: Vec<String> =
            self.ordered(wording).into_iter().map(|s| step_text(s, &value)).collect();
        words.push(format!("answer {} {} .", name_text(self.question), self.answer));
        words.join(" ")
    }
}

/// `c 3 ;` or `c : e 3 + f 5 = c 8 ;`
fn step_text(statement: Statement, value: &impl Fn(super::Name) -> Digit) -> String {
    let target = name_text(statement.target);
    let result = value(statement.target);
    match statement.expression {
        Expression::Constant(_) => format!("{target} {result} ;"),
        Expression::Binary { left, operation, right } => {
            let beside = match right {
                Operand::Variable(name) => format!(" {}", value(name)),
                Operand::Literal(_) => String::new(),
            };
            format!(
                "{target} : {} {} {} {}{beside} = {target} {result} ;",
                name_text(left),
                value(left),
                operation.sign(),
                operand_text(right)
            )
        }
    }
}

/// The answer in generated text: the digit after the first `answer` and a name; `None` if there is no such place.
///
/// ```
/// # use kvlab_executor::workload::chain::parse_answer;
/// assert_eq!(parse_answer("e 3 ; answer e 3 ."), Some(3));
/// assert_eq!(parse_answer("e 3 ;"), None);
/// ```
#[must_use]
pub fn parse_answer(generated: &str) -> Option<Digit> {
    let mut words = generated.split_whitespace().skip_while(|word| *word != "answer").skip(2);
    let digit = words.next()?;
    if digit.len() == 1 { digit.parse().ok() } else { None }
}
