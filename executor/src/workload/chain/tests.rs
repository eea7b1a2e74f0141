//! Claims about generated problems that training and evaluation rely on.

use super::problem::{Expression, Operand, values};
use super::*;

fn some_problems() -> impl Iterator<Item = (Problem, Wording, Hint)> {
    LEVELS.into_iter().flat_map(|level| {
        (0..48).map(move |index| {
            let turn = usize::try_from(index).unwrap();
            (problem(7, level, index), WORDINGS[turn % WORDINGS.len()], HINTS[turn % HINTS.len()])
        })
    })
}

#[test]
fn equal_keys_give_equal_problems_and_other_keys_other_ones() {
    let level = LEVELS[DEFAULT_LEVEL];
    assert_eq!(problem(1, level, 5), problem(1, level, 5));
    assert_ne!(problem(1, level, 5).statements, problem(1, level, 6).statements);
    assert_ne!(problem(1, level, 5).statements, problem(2, level, 5).statements);
    let training = Problem::of(ProblemId { split: Split::Training, ..problem(1, level, 5).id });
    assert_ne!(problem(1, level, 5).statements, training.statements);
}

#[test]
fn generator_did_not_move() {
    // Trained weights and recorded figures belong to these problems. Values were printed by the first version.
    let easy = problem(1, LEVELS[0], 0);
    assert_eq!(
        easy.prompt(Wording::Let, HINTS[1]),
        "solve : let T = 9 ; let v = 5 ; let χ = T + 2 ; let δ = T - v ; let m = χ - v ; let E = 7 ; \
         let L = v + δ ; let θ = T + 9 ; find L ? think step by step . work :"
    );
    assert_eq!(
        easy.solution(Wording::Let),
        "T 9 ; v 5 ; χ : T 9 + 2 = χ 1 ; δ : T 9 - v 5 = δ 4 ; m : χ 1 - v 5 = m 6 ; E 7 ; \
         L : v 5 + δ 4 = L 9 ; θ : T 9 + 9 = θ 8 ; answer L 9 ."
    );
}

#[test]
fn statements_use_earlier_variables_only_in_every_wording() {
    for (problem, wording, _) in some_problems() {
        let mut defined = Vec::new();
        for statement in problem.ordered(wording) {
            if let Expression::Binary { left, right, .. } = statement.expression {
                assert!(defined.contains(&left));
                if let Operand::Variable(name) = right {
                    assert!(defined.contains(&name));
                }
            }
            assert!(!defined.contains(&statement.target));
            defined.push(statement.target);
        }
    }
}

#[test]
fn all_text_is_in_the_vocabulary_and_survives_a_round_trip() {
    for (problem, wording, hint) in some_problems() {
        for text in
            [problem.prompt(wording, hint), verify_prompt(&problem, wording, &problem.solution(wording))]
        {
            assert_eq!(decode(&encode(&text).unwrap()), text);
        }
    }
}

#[test]
fn solutions_carry_the_answer_and_flawed_ones_another() {
    for (problem, wording, _) in some_problems() {
        assert_eq!(values(&problem.statements)[usize::from(problem.question.0)], problem.answer);
        assert_eq!(parse_answer(&problem.solution(wording)), Some(problem.answer));
        for attempt in 0..4 {
            let flawed = problem.flawed_solution(wording, attempt);
            assert!(parse_answer(&flawed).is_some_and(|digit| digit != problem.answer), "{flawed}");
        }
    }
}

#[test]
fn lengths_of_the_default_level_are_as_documented() {
    for index in 0..200 {
        let problem = problem(3, LEVELS[DEFAULT_LEVEL], index);
        for wording in WORDINGS {
            let prompt = encode(&problem.prompt(wording, HINTS[1])).unwrap().len();
            let chain = encode(&problem.solution(wording)).unwrap().len();
            // Measured 89..=150 and 131..=150 for 200 problems, plus up to 5 tokens of hint.
            assert!((80..=170).contains(&prompt) && (115..=165).contains(&chain), "{prompt} {chain}");
        }
    }
}

#[test]
fn every_level_fits_into_the_context_of_the_model() {
    for level in LEVELS {
        let (mut longest_prompt, mut longest_chain) = (0, 0);
        for index in 0..60 {
            let problem = problem(3, level, index);
            for wording in WORDINGS {
                longest_prompt =
                    longest_prompt.max(encode(&problem.prompt(wording, HINTS[1])).unwrap().len());
                longest_chain = longest_chain.max(encode(&problem.solution(wording)).unwrap().len() + 1);
            }
        }
        let new_tokens = crate::items::chain_new_tokens(level) as usize;
        assert!(longest_chain <= new_tokens, "{}: {longest_chain} of {new_tokens}", level.id);
        // `max_position_embeddings` of the embedded model; a shown solution is prompt and chain and a few words.
        assert!(longest_prompt + new_tokens <= 1280, "{}: {longest_prompt} + {new_tokens}", level.id);
    }
}

#[test]
fn operations_wrap_modulo_ten() {
    assert_eq!(Operation::Plus.apply(7, 5), 2);
    assert_eq!(Operation::Minus.apply(3, 8), 5);
    assert_eq!(Operation::Times.apply(7, 9), 3);
}

#[test]
fn verdicts_are_read_from_the_first_word() {
    assert_eq!(parse_verdict("yes <eos>"), Some(Verdict::Yes));
    assert_eq!(parse_verdict(" no"), Some(Verdict::No));
    assert_eq!(parse_verdict("a 3"), None);
}

#[test]
fn a_judged_record_says_no_from_the_deviation_on() {
    let problem = problem(1, LEVELS[0], 0);
    let right = problem.solution(Wording::Let);
    let flawed = right.replace("answer L 9 .", "answer L 3 .");
    let record = judged_record(&problem, Wording::Let, &flawed).unwrap();
    let no = token_id("no").unwrap();
    let yes = token_id("yes").unwrap();
    // `3`, `.` and `verdict` are judged `no`; everything of the proposal before is `yes`.
    assert_eq!(record.targets.iter().filter(|&&target| target == no).count(), 3);
    assert_eq!(
        record.targets.iter().filter(|&&target| target == yes).count(),
        encode(&right).unwrap().len() - 2
    );
    assert_eq!(record.tokens.len(), record.targets.len());
}

#[test]
fn a_deviation_that_keeps_the_answer_has_no_label() {
    let problem = problem(1, LEVELS[0], 0);
    // `m` is not needed for `L`.
    let flawed = problem.solution(Wording::Let).replace("m 6 ;", "m 5 ;");
    assert_eq!(judged_record(&problem, Wording::Let, &flawed), None);
}

#[test]
fn training_records_fit_and_have_losses() {
    let mixture = Mixture {
        recall_percent: 20,
        judge_percent: 30,
        check_percent: 20,
        statements_min: 5,
        statements_max: 24,
        long_percent: 10,
        long_max: 70,
    };
    for index in 0..200 {
        let record = training_record(1, mixture, index);
        assert_eq!(record.tokens.len(), record.targets.len());
        assert!(record.targets.iter().any(|&target| target != 255));
        assert_eq!(record, training_record(1, mixture, index));
    }
}
