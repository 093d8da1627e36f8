//! The cases of a [`Store`].

mod arrivals;
mod bench;
mod dead_letters;
mod deliveries;
mod envelope;
mod housekeeping;
mod operators;
mod order;
mod ownership;
mod pulls;
mod replay;

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use pabal_core::Store;

pub use self::bench::Bench;

/// A store under test, with what a case may do around it.
#[async_trait]
pub trait Subject: fmt::Debug + Send + Sync {
    /// The store, open.
    fn store(&self) -> Arc<dyn Store>;
    /// Lets the store's clock go on by this much.
    async fn pass(&self, time: Duration);
    /// The same store once more, as another node has it.
    async fn another(&self) -> Arc<dyn Store>;
    /// Closes it and opens what it left behind.
    async fn reopen(&mut self);
}

/// What a store may be unable to do by its nature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Keeps what it was given when it is closed.
    Outlives,
}

/// One thing a store must do; the name is the claim.
#[derive(Clone, Copy)]
pub struct Case {
    /// The claim.
    pub name: &'static str,
    /// What the store must be able to do for the claim to mean anything.
    pub needs: Option<Feature>,
    run: fn(Bench) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Case {
    /// Runs it on a fresh store.
    ///
    /// # Errors
    /// If the claim does not hold; says why.
    pub async fn run(self, subject: impl Subject + 'static) -> Result<(), String> {
        // A task of its own turns a failed assertion into an answer.
        let run = async move { (self.run)(Bench::new(Box::new(subject)).await).await };
        match tokio::spawn(run).await {
            Ok(()) => Ok(()),
            Err(error) => Err(match error.try_into_panic() {
                Ok(panic) => panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
                    .unwrap_or_else(|| "it panicked".to_owned()),
                Err(error) => error.to_string(),
            }),
        }
    }
}

macro_rules! cases {
    ($($module:ident { $($name:ident $(needs $feature:ident)?),* $(,)? })*) => {
        vec![$($(Case {
            name: stringify!($name),
            needs: None$(.or(Some(Feature::$feature)))?,
            run: |bench| Box::pin($module::$name(bench)),
        }),*),*]
    };
}

/// All cases, for every store.
#[must_use]
pub fn cases() -> Vec<Case> {
    cases! {
        arrivals {
            a_repeat_is_recognised,
            a_repeat_is_looked_up_without_being_counted_and_counted_later,
            the_same_id_with_other_content_is_a_conflict_and_keeps_both_fingerprints,
            ids_are_scoped_by_source,
            a_message_and_its_deliveries_appear_together_or_not_at_all,
            a_failed_group_leaves_nothing,
            order_numbers_follow_the_hand_over,
            order_numbers_are_never_reused_after_the_newest_row_is_deleted,
            twenty_copies_at_once_on_two_nodes_are_taken_once,
            state_writes_commit_with_their_messages,
            a_refused_arrival_holds_no_claim_on_its_id,
            an_arrival_refused_again_is_kept_once,
            a_message_nobody_takes_is_counted,
            a_fault_of_routing_is_a_dead_letter_and_not_a_no,
        }
        envelope {
            every_field_survives,
            every_byte_of_a_body_survives,
            a_body_kept_elsewhere_is_named,
        }
        deliveries {
            deliveries_are_read_by_tail_destination_key_and_number,
            a_retry_is_not_due_before_its_time,
            only_a_spent_attempt_counts,
            a_settle_names_number_message_destination_and_round,
            a_large_group_gets_one_answer_each,
            a_stale_delivery_is_told_as_such,
            a_late_success_is_recorded,
            a_late_success_of_an_earlier_round_changes_nothing,
            pinned_bytes_survive_retry_death_and_replay,
            sends_noted_before_they_began_are_counted_until_settled,
            a_settled_delivery_and_a_message_that_is_gone_load_as_nothing,
        }
        dead_letters {
            what_is_dead_is_not_read_until_replayed,
            a_held_key_is_reported_until_replayed_or_discarded,
            a_held_destination_is_reported_without_a_key,
            a_dead_letter_without_a_key_holds_nothing,
            dead_letters_are_narrowed_and_grouped,
            the_arrival_behind_a_dead_letter_is_kept_whole,
        }
        order {
            a_key_keeps_its_order_through_retries_death_and_replay_and_others_pass,
            a_key_that_passes_its_dead_holds_nothing_back,
            rows_that_wait_keep_slot_and_order_under_another_layout,
            lanes_that_change_hands_spend_no_attempt,
            what_the_tail_skipped_is_found_later_and_nothing_is_seen_twice,
            the_next_of_a_deep_key_are_read_in_pages_past_what_is_in_front,
        }
        pulls {
            what_was_pulled_is_not_pulled_again_before_its_lease_lapses,
            nothing_is_pulled_while_an_earlier_one_of_its_key_is_out,
            racing_pullers_never_get_the_same_and_never_two_of_a_key,
            a_late_ack_counts_and_a_late_refusal_only_of_the_last_time,
            what_lapses_counts_goes_alone_and_in_the_end_not_at_all,
            a_dead_letter_keeps_its_key_from_being_pulled,
            with_order_all_one_goes_at_a_time_and_without_an_order_nothing_waits,
            a_pull_is_bounded_in_bytes_and_one_of_any_size_goes,
            what_stands_behind_a_deep_key_is_found_in_few_pages,
        }
        replay {
            a_replay_pressed_twice_queues_once_with_the_old_number,
            two_operators_replaying_the_same_hundred_queue_each_once,
            only_deliveries_are_replayed_and_everything_can_be_discarded,
            routing_adds_each_destination_once,
            a_routing_question_is_answered_once,
        }
        operators {
            counts_are_right,
            messages_are_found,
            a_message_tells_its_story,
            requests_are_read_after_a_number,
            link_state_outlives_reopening needs Outlives,
            everything_taken_outlives_reopening needs Outlives,
        }
        housekeeping {
            what_is_over_goes_after_its_time_and_what_is_needed_stays,
            what_came_again_is_not_forgotten_as_old,
            an_expired_dead_letter_is_logged_and_one_that_holds_a_key_stays,
        }
        ownership {
            a_value_is_written_only_over_the_revision_that_was_read,
            every_life_of_a_node_has_a_higher_epoch,
            a_node_that_left_is_gone_and_one_that_holds_lanes_cannot_leave,
            a_plan_is_known_while_a_node_runs_it,
            a_lane_is_taken_only_from_who_holds_it,
            eight_racing_nodes_never_hold_one_lane_twice,
            nothing_of_a_new_layout_is_taken_while_an_old_lane_is_held,
            how_a_lane_ended_is_known_until_the_next_layout_is_taken_whole,
            a_failure_counts_only_from_who_holds_the_lane,
            a_lapsed_lane_is_taken_over_and_the_late_failure_is_fenced,
        }
    }
}

/// Runs all cases, each on a fresh store, and prints what became of each. `cannot` names what the
/// store is unable to do, and why; cases that need it are listed and not run.
///
/// # Panics
/// If a case fails; after all have run, with the names of those that failed.
pub async fn check<S: Subject + 'static>(
    make: impl AsyncFn() -> S,
    cannot: &[(Feature, &'static str)],
) {
    let mut failed = Vec::new();
    for case in cases() {
        let missing = cannot.iter().find(|(feature, _)| case.needs == Some(*feature));
        if let Some((_, why)) = missing {
            eprintln!("does not apply  {} ({why})", case.name);
            continue;
        }
        match case.run(make().await).await {
            Ok(()) => eprintln!("holds           {}", case.name),
            Err(why) => {
                eprintln!("FAILED          {}: {why}", case.name);
                failed.push(case.name);
            }
        }
    }
    assert!(failed.is_empty(), "claims that do not hold: {failed:?}");
}
