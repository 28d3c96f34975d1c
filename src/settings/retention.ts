import { integerBetween, type Setting } from './setting.ts'

/** The longest time for which rows can be kept, in days: a century. */
const MOST_DAYS = 36_500

const keptDays = integerBetween(0, MOST_DAYS)

/** How long the control plane keeps what is gone. 0 keeps for ever. */
export const RETENTION_SETTINGS = {
  keepSandboxesDays: {
    variable: 'SANDYARD_KEEP_SANDBOXES_DAYS',
    flag: null,
    fallback: '30',
    unit: 'days',
    meaning: 'how long the row of a deleted sandbox is kept, with its specification; 0 keeps for ever',
    parse: keptDays,
  } satisfies Setting<number>,
  keepRunsDays: {
    variable: 'SANDYARD_KEEP_RUNS_DAYS',
    flag: null,
    fallback: '90',
    unit: 'days',
    meaning:
      'how long ended runs are kept; before that, usage reports take whole days only; the latest run of a sandbox stays with it; 0 keeps for ever',
    parse: keptDays,
  } satisfies Setting<number>,
  keepEventsDays: {
    variable: 'SANDYARD_KEEP_EVENTS_DAYS',
    flag: null,
    fallback: '365',
    unit: 'days',
    meaning: 'how long audit events are kept, and API keys after they were revoked or expired; 0 keeps for ever',
    parse: keptDays,
  } satisfies Setting<number>,
  keepUsageDays: {
    variable: 'SANDYARD_KEEP_USAGE_DAYS',
    flag: null,
    fallback: '400',
    unit: 'days',
    meaning:
      'how long the usage of each sandbox and volume is kept, with the names of deleted sandboxes; the sums of each organization and day stay; 0 keeps for ever',
    parse: keptDays,
  } satisfies Setting<number>,
  keepIdempotencyKeysHours: {
    variable: 'SANDYARD_KEEP_IDEMPOTENCY_KEYS_HOURS',
    flag: null,
    fallback: '24',
    unit: 'hours',
    meaning:
      'how long the reply to a request with an `Idempotency-Key` is remembered; an organization may have 100,000 keys with 1 GiB of replies; 0 keeps for ever',
    parse: integerBetween(0, MOST_DAYS * 24),
  } satisfies Setting<number>,
} as const
