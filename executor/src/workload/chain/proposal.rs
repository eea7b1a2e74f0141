//! Verification: proposed solutions, right or with one flaw that changes the answer, and the yes/no prompt.

use super::draw::Draw;
use super::problem::{Digit, Expression, NAMES, Name, Operand, Operation, Problem, Statement, ancestors};
use super::vocabulary::name_text;
use super::wording::{Wording, operand_text};

/// The judgement of a proposed solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The proposed answer is right.
    Yes,
    /// It is not.
    No,
}

/// The mistakes a chain of thought can contain. What follows a mistake is computed consistently from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A value is looked up wrongly: a constant, or the value beside an operand.
    Lookup,
    /// The result of an operation is wrong.
    Arithmetic,
    /// Another operation than the statement's.
    Operation,
    /// Another variable than the statement's, with its own right value.
    Operand,
    /// All steps are right, the answer is not.
    Answer,
}

/// The flaws that are drawn from; lookups twice, because models make that mistake most.
const FLAWS: [Flaw; 6] =
    [Flaw::Lookup, Flaw::Lookup, Flaw::Arithmetic, Flaw::Operation, Flaw::Operand, Flaw::Answer];

/// What the model reads before it says `yes` or `no`: the problem and a proposed solution
/// (chain of thought and answer, as [`Problem::solution`] or a model writes it).
#[must_use]
pub fn verify_prompt(problem: &Problem, wording: Wording, proposed: &str) -> String {
    format!("judge : {} shown : {proposed} verdict", problem.body(wording))
}

/// The verdict in generated text: its first word, if that is `yes` or `no`.
#[must_use]
pub fn parse_verdict(generated: &str) -> Option<Verdict> {
    match generated.split_whitespace().next()? {
        "yes" => Some(Verdict::Yes),
        "no" => Some(Verdict::No),
        _ => None,
    }
}

impl Problem {
    /// A solution with one flaw and a wrong answer; `attempt` selects one of many. The same key gives the same text.
    #[must_use]
    pub fn flawed_solution(&self, wording: Wording, attempt: u64) -> String {
        self.flawed(wording, &mut self.id.draw(1000 + attempt))
    }

    /// A solution with this flaw and a wrong answer. `None` if none was found: a flaw may be masked (`x - x`), and
    /// a problem whose question needs constants only has no operation to get wrong.
    #[must_use]
    pub fn solution_with(&self, flaw: Flaw, wording: Wording, attempt: u64) -> Option<String> {
        let mut draw = self.id.draw((1 << 32) + attempt);
        let statements = self.ordered(wording);
        (0..256).find_map(|_| self.flawed_at_random(flaw, &statements, &mut draw))
    }

    pub(super) fn flawed(&self, wording: Wording, draw: &mut Draw) -> String {
        let statements = self.ordered(wording);
        for _ in 0..64 {
            let flaw = FLAWS[draw.index(FLAWS.len())];
            if let Some(text) = self.flawed_at_random(flaw, &statements, draw) {
                return text;
            }
        }
        let question = name_text(self.question);
        let wrong = (self.answer + 1) % 10;
        let right_end = format!("answer {question} {} .", self.answer);
        self.solution(wording).replace(&right_end, &format!("answer {question} {wrong} ."))
    }

    /// The flaw at a random statement; `None` if the answer does not need that statement or stays right.
    fn flawed_at_random(&self, flaw: Flaw, statements: &[Statement], draw: &mut Draw) -> Option<String> {
        let position = draw.index(statements.len());
        if ancestors(&self.statements, self.question) & (1_u128 << statements[position].target.0) == 0 {
            return None;
        }
        let (text, answer) = Writer::new(flaw, position).write(statements, self.question, draw);
        (answer != self.answer).then_some(text)
    }
}

/// A chain with flaws in about a quarter of its steps (some draws change nothing), for training only: its text, and
/// for each token whether a solver that reads what stands before it would have written something else.
pub(super) fn spotted(problem: &Problem, wording: Wording, draw: &mut Draw) -> (String, Vec<bool>) {
    let mut writer = Writer::new(Flaw::Answer, 0);
    let mut words = Vec::new();
    let mut flags = Vec::new();
    for statement in problem.ordered(wording) {
        let flaw = draw.percent(45).then(|| FLAWS[draw.index(FLAWS.len())]);
        let (clean, _) = writer.step(statement, None, draw);
        let (text, result) = writer.step(statement, flaw, draw);
        let deviation =
            clean.split(' ').zip(text.split(' ')).position(|(expected, written)| expected != written);
        flags.extend((0..text.split(' ').count()).map(|token| Some(token) == deviation));
        words.push(text);
        writer.learn(statement.target, result);
    }
    let right = writer.value(problem.question);
    let is_flawed = draw.percent(25);
    let answer = if is_flawed { writer.wrong_digit(right, draw) } else { right };
    words.push(format!("answer {} {answer} .", name_text(problem.question)));
    flags.extend([false, false, answer != right, false]);
    (words.join(" "), flags)
}

/// Writes a chain with one flaw at one statement.
struct Writer {
    flaw: Flaw,
    position: usize,
    values: [Digit; NAMES as usize],
    known: Vec<Name>,
}

impl Writer {
    fn new(flaw: Flaw, position: usize) -> Self {
        Self { flaw, position, values: [0; NAMES as usize], known: Vec::new() }
    }

    fn value(&self, name: Name) -> Digit {
        self.values[usize::from(name.0)]
    }

    fn learn(&mut self, name: Name, value: Digit) {
        self.values[usize::from(name.0)] = value;
        self.known.push(name);
    }

    /// The text and its final answer.
    fn write(&mut self, statements: &[Statement], question: Name, draw: &mut Draw) -> (String, Digit) {
        let mut words = Vec::new();
        for (position, statement) in statements.iter().enumerate() {
            let flaw = (position == self.position).then_some(self.flaw);
            let (text, result) = self.step(*statement, flaw, draw);
            words.push(text);
            self.learn(statement.target, result);
        }
        let right = self.value(question);
        let answer = if self.flaw == Flaw::Answer { self.wrong_digit(right, draw) } else { right };
        words.push(format!("answer {} {answer} .", name_text(question)));
        (words.join(" "), answer)
    }

    fn step(&self, statement: Statement, flaw: Option<Flaw>, draw: &mut Draw) -> (String, Digit) {
        let target = name_text(statement.target);
        let (mut left, mut operation, mut right) = match statement.expression {
            Expression::Constant(digit) => {
                let digit = if flaw == Some(Flaw::Lookup) { self.wrong_digit(digit, draw) } else { digit };
                return (format!("{target} {digit} ;"), digit);
            }
            Expression::Binary { left, operation, right } => (left, operation, right),
        };
        match flaw {
            Some(Flaw::Operation) => operation = other_operation(operation, right, draw),
            Some(Flaw::Operand) => self.change_operand(&mut left, &mut right, draw),
            _ => {}
        }
        let mut left_value = self.value(left);
        let mut right_value = match right {
            Operand::Variable(name) => self.value(name),
            Operand::Literal(digit) => digit,
        };
        let mut beside = String::new();
        if flaw == Some(Flaw::Lookup) {
            if matches!(right, Operand::Variable(_)) && draw.percent(50) {
                right_value = self.wrong_digit(right_value, draw);
            } else {
                left_value = self.wrong_digit(left_value, draw);
            }
        }
        if matches!(right, Operand::Variable(_)) {
            beside = format!(" {right_value}");
        }
        let mut result = operation.apply(left_value, right_value);
        if flaw == Some(Flaw::Arithmetic) {
            result = self.wrong_digit(result, draw);
        }
        let text = format!(
            "{target} : {} {left_value} {} {}{beside} = {target} {result} ;",
            name_text(left),
            operation.sign(),
            operand_text(right)
        );
        (text, result)
    }

    fn change_operand(&self, left: &mut Name, right: &mut Operand, draw: &mut Draw) {
        let other = self.known[draw.index(self.known.len())];
        match right {
            Operand::Variable(name) if draw.percent(50) => *name = other,
            _ => *left = other,
        }
    }

    /// Mostly the value of another variable, sometimes any other digit.
    fn wrong_digit(&self, right: Digit, draw: &mut Draw) -> Digit {
        if !self.known.is_empty() && draw.percent(70) {
            let digit = self.value(self.known[draw.index(self.known.len())]);
            if digit != right {
                return digit;
            }
        }
        (right + 1 + draw.digit() % 9) % 10
    }
}

/// Another operation; for a product of a literal that is the sum or the difference.
fn other_operation(operation: Operation, right: Operand, draw: &mut Draw) -> Operation {
    let choices: &[Operation] = match (operation, right) {
        (Operation::Times, _) => &[Operation::Plus, Operation::Minus],
        (Operation::Plus, Operand::Variable(_)) => &[Operation::Minus],
        (Operation::Plus, Operand::Literal(_)) => &[Operation::Minus, Operation::Times],
        (Operation::Minus, Operand::Variable(_)) => &[Operation::Plus],
        (Operation::Minus, Operand::Literal(_)) => &[Operation::Plus, Operation::Times],
    };
    choices[draw.index(choices.len())]
}
