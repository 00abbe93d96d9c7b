//! Searches every variant: what is designed holds, and each known mistake is found by the property that is named for
//! it, in as many steps as a shortest counterexample has. Writes the table, with each counterexample's steps.
//!
//! The variants that hold are searched less far than their bounds say, for somebody waits: `MODEL_WHOLE=1` goes there (half
//! a minute), `MODEL_HORIZON` and `MODEL_TERMS` further (each unit of either is about four times the states). The table
//! says how far.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::env;
use std::io::Write;

use model::{Bounds, Finding, VARIANTS, Variant, Verdict, search, table};

/// CI has two cores.
const THREADS: usize = 2;

/// `variant` as it is searched here.
fn to_search(variant: &Variant) -> Variant {
    let Verdict::Holds { states_min } = variant.verdict else { return *variant };
    let asked = |name: &str| env::var(name).ok().map(|text| text.parse::<u8>().expect("a small number"));
    let Bounds { horizon, terms, .. } = variant.bounds;
    let whole = env::var_os("MODEL_WHOLE").is_some();
    let (horizon_here, terms_here) = if whole { (horizon, terms) } else { (2, terms - 1) };
    let bounds = Bounds {
        horizon: asked("MODEL_HORIZON").unwrap_or(horizon_here),
        terms: asked("MODEL_TERMS").unwrap_or(terms_here),
        ..variant.bounds
    };
    let is_less = bounds.horizon < horizon || bounds.terms < terms;
    let states_min = if is_less { 300_000 } else { states_min };
    Variant { bounds, verdict: Verdict::Holds { states_min }, ..*variant }
}

#[test]
fn each_variant_is_what_it_should_be() {
    let variants: Vec<Variant> = VARIANTS.iter().map(to_search).collect();
    let findings: Vec<Finding> = variants.iter().map(|variant| search(variant, THREADS)).collect();
    let mut told = String::new();
    for finding in findings.iter().filter(|finding| !finding.broken.is_empty()) {
        told.push_str(&format!("{finding:#}\n\n"));
    }
    // Past the test's capture: the table is what a run is for.
    writeln!(std::io::stderr(), "\n{told}{}\n", table(&findings)).expect("stderr");
    let wrong: Vec<String> =
        variants.iter().zip(&findings).filter_map(|(variant, it)| it.meets(variant.verdict).err()).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_wrong_finding_is_told() {
    let designed = Variant { bounds: Bounds { horizon: 1, terms: 1, outages: 0, clients: 1 }, ..VARIANTS[0] };
    let finding = search(&designed, 1);
    let too_few = finding.meets(Verdict::Holds { states_min: 1 }).expect_err("nothing expires in one unit of time");
    assert!(too_few.contains("never happened") && too_few.contains("a grant expires"), "{too_few}");
    let unbroken = finding.meets(Verdict::Breaks { property: model::TWO_HOLDERS, steps: 1 });
    assert!(unbroken.expect_err("it holds").contains("was not broken"));
}
