//! Tails, bounds and p-values against SciPy 1.17.1 (`binom.cdf`, `beta.ppf`), exact fractions, and formulas written again in Python.

use kvlab_sim::tune::tail::{
    betting, binomial_at_most, hoeffding_bentkus, needed, needed_at_rate, upper_bound,
};
use kvlab_sim::tune::{Loss, Test};

fn close(found: f64, expected: f64, relative: f64) {
    assert!((found - expected).abs() <= relative * expected.abs(), "{found:e} {expected:e}");
}

/// `scipy.stats.binom.cdf(k, n, r)`. SciPy itself is good to about 1e-13.
#[test]
fn binomial_tails_are_those_of_scipy() {
    for (losses, n, rate, expected) in [
        (0, 300, 0.01, 0.049_040_894_071_285_854),
        (3, 300, 0.01, 0.647_233_774_642_542_7),
        (10, 1000, 0.02, 0.010_236_548_159_763_267),
        (40, 1000, 0.05, 0.080_636_573_256_691),
        (5, 20, 0.5, 0.020_694_732_666_015_625),
        (0, 59, 0.05, 0.048_494_525_249_422_3),
        (100, 10_000, 0.012, 0.033_852_572_716_222_974),
        (19, 20, 0.9, 0.878_423_345_409_430_7),
        (2, 10, 0.001, 0.999_999_880_628_490_1),
    ] {
        close(binomial_at_most(losses, n, rate), expected, 1e-11);
    }
    // By hand: all values are at most n, and half of three coins in eight ways.
    assert!((binomial_at_most(1, 3, 0.5) - 0.5).abs() < 1e-15);
    let ends = [binomial_at_most(3, 3, 0.2), binomial_at_most(0, 3, 0.0), 1.0 - binomial_at_most(2, 3, 1.0)];
    assert!(ends.iter().all(|p| (p - 1.0).abs() < 1e-15), "{ends:?}");
    // Far below the smallest float.
    assert!(binomial_at_most(0, 1_000_000, 0.5).abs() < 1e-300);
    let (a, b) = (binomial_at_most(49_000, 100_000, 0.5), 1.29e-10);
    assert!((a / b - 1.0).abs() < 0.2, "{a:e}: a normal tail at 6.33 standard deviations");
}

/// `scipy.stats.beta.ppf(1 - d, k + 1, n - k)`, and 1 − 0.05^(1/300) for none of 300.
#[test]
fn upper_bounds_are_those_of_clopper_and_pearson() {
    for (losses, n, delta, expected) in [
        (0, 300, 0.05, 0.009_936_081_944_457_708),
        (1, 300, 0.05, 0.015_714_554_891_583_95),
        (3, 300, 0.05, 0.025_641_393_082_609_616),
        (0, 59, 0.05, 0.049_507_609_888_226_93),
        (10, 100, 0.05, 0.163_717_623_275_815_77),
        (5, 50, 0.01, 0.241_552_643_746_475_67),
        (0, 1, 0.05, 0.95),
        (99, 100, 0.05, 0.999_487_198_583_737_7),
        (12, 4000, 0.1, 0.004_442_183_143_339_961),
    ] {
        close(upper_bound(losses, n, delta), expected, 1e-11);
    }
    close(upper_bound(0, 300, 0.05), 1.0 - 0.05_f64.powf(1.0 / 300.0), 1e-11);
    assert!((upper_bound(5, 5, 0.05) - 1.0).abs() < 1e-15 && (upper_bound(0, 0, 0.05) - 1.0).abs() < 1e-15);
}

/// min(exp(−n h₁), e · `binom.cdf(ceil(sum), n, limit)`), written in Python.
#[test]
fn hoeffding_bentkus_is_that_of_an_independent_implementation() {
    for (sum, n, limit, expected) in [
        (0.0, 300, 0.01, 0.049_040_894_071_284_896),
        (2.5, 300, 0.02, 0.263_927_903_324_989_05),
        (10.2, 200, 0.1, 0.041_009_585_212_951_86),
        (30.0, 200, 0.1, 1.0),
        (7.75, 500, 0.03, 0.096_261_158_725_211_5),
        (0.4, 40, 0.1, 0.057_656_684_859_698_736),
        (100.0, 400, 0.3, 0.042_220_593_381_272_965),
    ] {
        close(hoeffding_bentkus(sum, n, limit), expected, 1e-10);
    }
}

/// The capital in exact fractions.
#[test]
fn betting_is_that_of_exact_fractions() {
    for (worse, better, same, limit, expected) in [
        (0, 0, 300, 0.01, 0.090_181_646_886_082_43),
        (0, 3, 297, 0.01, 0.011_982_695_327_607_805),
        (1, 4, 495, 0.01, 0.306_167_253_750_441_24),
        (5, 5, 990, 0.01, 0.260_914_363_817_850_8),
        (5, 40, 200, 0.0, 4.029_958_833_060_925e-5),
        (2, 1, 97, 0.05, 1.0),
    ] {
        close(betting(worse, better, same, limit), expected, 1e-10);
    }
}

/// Counted up one by one with `binom.cdf`.
#[test]
fn how_many_problems_are_needed() {
    for (losses, rate, delta, expected) in [
        (0, 0.01, 0.05, 299),
        (1, 0.01, 0.05, 473),
        (5, 0.01, 0.05, 1049),
        (0, 0.02, 0.05, 149),
        (0, 0.05, 0.1, 45),
        (3, 0.02, 0.01, 499),
    ] {
        assert_eq!(needed(losses, rate, delta), Some(expected), "{losses} {rate} {delta}");
    }
    assert_eq!(needed(0, 0.0, 0.05), None);
    // One loss in 500: the first n at which that rate gives at most as many losses as are allowed. One loss is allowed at 473, where 0.95 are expected.
    assert_eq!(needed_at_rate(1.0 / 500.0, 0.01, 0.05), Some((473, 1)));
    assert_eq!(needed_at_rate(0.01, 0.01, 0.05), None);
    let loss = |test| Loss { test, limit: 0.01 };
    assert_eq!(loss(Test::Binomial { losses: 0, n: 10 }).needed(0.05), (Some(299), Some(299)));
    let (without, at_rate) = loss(Test::Bounded { sum: 0.01, n: 10 }).needed(0.05);
    assert!(without == Some(299) && at_rate > Some(299), "{without:?} {at_rate:?}");
    let (without, at_rate) = loss(Test::Betting { worse: 0, better: 1, same: 99 }).needed(0.05);
    assert!(without > Some(299) && at_rate < without, "{without:?} {at_rate:?}");
    assert_eq!(loss(Test::Betting { worse: 2, better: 1, same: 7 }).needed(0.05).1, None);
}
