//! The problem itself: statements, question, values. Text is made elsewhere.

use super::draw::Draw;
use super::level::Level;

/// A variable: index into the 76 letters `a..z`, `A..Z`, `α..ω`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub(super) u8);

/// How many different names there are.
pub(super) const NAMES: u8 = 76;

/// A value, `0..=9`.
pub type Digit = u8;

/// Which half of the problem space: problems of one are never problems of the other, up to coincidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Problems a model may have been trained on.
    Training,
    /// Problems for measurements.
    Evaluation,
}

/// What a problem is a function of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProblemId {
    /// Seed of the whole set.
    pub seed: u64,
    /// Difficulty.
    pub level: Level,
    /// Training or evaluation.
    pub split: Split,
    /// Running number within `(seed, level, split)`.
    pub index: u64,
}

/// A binary operation, modulo 10.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Sum.
    Plus,
    /// Difference; wraps below 0.
    Minus,
    /// Product. The right side is always 3, 7 or 9, so no information is lost.
    Times,
}

/// Right side of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// The value of an earlier variable.
    Variable(Name),
    /// A digit written in the statement.
    Literal(Digit),
}

/// What a variable is defined by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expression {
    /// A digit.
    Constant(Digit),
    /// `left operation right`.
    Binary {
        /// An earlier variable.
        left: Name,
        /// The operation.
        operation: Operation,
        /// An earlier variable or a digit.
        right: Operand,
    },
}

/// `target = expression`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement {
    /// The variable that is defined; each is defined once.
    pub target: Name,
    /// Its definition.
    pub expression: Expression,
}

/// Statements in an order in which each uses only earlier ones, a question, and the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it came from.
    pub id: ProblemId,
    /// The definitions, distractors among them.
    pub statements: Vec<Statement>,
    /// The variable asked for.
    pub question: Name,
    /// Its value.
    pub answer: Digit,
}

impl Operation {
    /// Applies the operation modulo 10.
    #[must_use]
    pub fn apply(self, left: Digit, right: Digit) -> Digit {
        match self {
            Self::Plus => (left + right) % 10,
            Self::Minus => (left + 10 - right) % 10,
            Self::Times => (left * right) % 10,
        }
    }
}

/// The problem of this key in the evaluation split.
#[must_use]
pub fn problem(seed: u64, level: Level, index: u64) -> Problem {
    Problem::of(ProblemId { seed, level, split: Split::Evaluation, index })
}

impl Problem {
    /// The problem with this identity.
    #[must_use]
    pub fn of(id: ProblemId) -> Self {
        let mut draw = id.draw(0);
        let count = draw.between(id.level.statements_min, id.level.statements_max);
        let mut names: Vec<Name> = (0..NAMES).map(Name).collect();
        draw.shuffle(&mut names);
        let statements = draw_statements(&mut draw, count, &names);
        let question = draw_question(&mut draw, &statements);
        let answer = values(&statements)[usize::from(question.0)];
        Self { id, statements, question, answer }
    }
}

impl ProblemId {
    /// A stream for this problem; `purpose` separates streams of one problem.
    pub(super) fn draw(self, purpose: u64) -> Draw {
        let split = match self.split {
            Split::Training => 0,
            Split::Evaluation => 1,
        };
        Draw::keyed([self.seed, self.level.key(), (purpose << 1) | split, self.index])
    }
}

/// The value of each name, 0 for names that are not defined. `[name]`, length 76.
pub(super) fn values(statements: &[Statement]) -> [Digit; NAMES as usize] {
    let mut values = [0; NAMES as usize];
    for statement in statements {
        values[usize::from(statement.target.0)] = match statement.expression {
            Expression::Constant(digit) => digit,
            Expression::Binary { left, operation, right } => {
                let right = match right {
                    Operand::Variable(name) => values[usize::from(name.0)],
                    Operand::Literal(digit) => digit,
                };
                operation.apply(values[usize::from(left.0)], right)
            }
        };
    }
    values
}

/// About a quarter of the statements are constants; the first two always are, the others are spread over the
/// first half.
fn draw_statements(draw: &mut Draw, count: u32, names: &[Name]) -> Vec<Statement> {
    let late_constants = (count / 4).saturating_sub(1);
    let mut kinds: Vec<bool> = (0..(count / 2).max(late_constants)).map(|i| i < late_constants).collect();
    draw.shuffle(&mut kinds);
    let mut statements: Vec<Statement> = Vec::new();
    for (position, &target) in names.iter().enumerate().take(count as usize) {
        let is_constant = position < 2 || kinds.get(position - 2).copied().unwrap_or(false);
        let expression = if is_constant {
            Expression::Constant(draw.digit())
        } else {
            draw_binary(draw, &names[..position])
        };
        statements.push(Statement { target, expression });
    }
    statements
}

/// The left operand is recent half of the time; otherwise operands are uniform over all earlier variables.
fn draw_binary(draw: &mut Draw, earlier: &[Name]) -> Expression {
    let reach = if draw.percent(50) { earlier.len().min(4) } else { earlier.len() };
    let left_position = earlier.len() - 1 - draw.index(reach);
    let left = earlier[left_position];
    if draw.percent(15) {
        let right = Operand::Literal([3, 7, 9][draw.index(3)]);
        return Expression::Binary { left, operation: Operation::Times, right };
    }
    let operation = if draw.percent(50) { Operation::Plus } else { Operation::Minus };
    let right = if draw.percent(20) {
        Operand::Literal(1 + draw.digit() % 9)
    } else {
        let others: Vec<Name> = earlier.iter().copied().filter(|&name| name != left).collect();
        Operand::Variable(others[draw.index(others.len())])
    };
    if draw.percent(50)
        && let Operand::Variable(name) = right
    {
        return Expression::Binary { left: name, operation, right: Operand::Variable(left) };
    }
    Expression::Binary { left, operation, right }
}

/// A variable that needs at least half as many others as the one that needs most.
fn draw_question(draw: &mut Draw, statements: &[Statement]) -> Name {
    let needed: Vec<u32> = statements.iter().map(|s| ancestors(statements, s.target).count_ones()).collect();
    let most = needed.iter().copied().max().unwrap_or(0);
    let candidates: Vec<Name> = statements
        .iter()
        .zip(&needed)
        .filter(|&(_, &count)| 2 * count > most)
        .map(|(statement, _)| statement.target)
        .collect();
    candidates[draw.index(candidates.len())]
}

/// The variables that `name` depends on, itself included, one bit per name.
pub(super) fn ancestors(statements: &[Statement], name: Name) -> u128 {
    let mut needed = 1_u128 << name.0;
    for statement in statements.iter().rev() {
        if needed & (1_u128 << statement.target.0) == 0 {
            continue;
        }
        if let Expression::Binary { left, right, .. } = statement.expression {
            needed |= 1_u128 << left.0;
            if let Operand::Variable(right) = right {
                needed |= 1_u128 << right.0;
            }
        }
    }
    needed
}
