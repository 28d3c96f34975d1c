import type { DesiredRun, RunOutcome, StartFailure } from '../../contract/workers/worker-protocol.ts'

/** How a simulated run behaves. Delays are in milliseconds of the driver's clock. */
export type SimulatedBehaviour = {
  readonly startDelayMs: number
  /** If set, the start fails with this error after `startDelayMs`. */
  readonly startFailure: { readonly reason: StartFailure; readonly message: string } | null
  /** How long a stop takes, unless `ignoresTerm` is set. */
  readonly stopDelayMs: number
  /** Whether the run ignores SIGTERM, so that a stop takes the full grace time. */
  readonly ignoresTerm: boolean
  /** How long after its start the run ends by itself. Null if it never does. */
  readonly endsAfterMs: number | null
  readonly outcome: RunOutcome
  /** How many processes of the running sandbox the kernel is said to have killed because memory ran out. */
  readonly memoryKills: number
}

/** The default behaviour: the run starts at once and runs until it is stopped. */
export const DEFAULT_BEHAVIOUR: SimulatedBehaviour = {
  startDelayMs: 0,
  startFailure: null,
  stopDelayMs: 0,
  ignoresTerm: false,
  endsAfterMs: null,
  outcome: { kind: 'exited', code: 0 },
  memoryKills: 0,
}

type BehaviourRule = { readonly image: RegExp; readonly behaviour: Partial<SimulatedBehaviour> }

/**
 * Returns a function that chooses a run's behaviour by its image reference. The first rule that matches overrides
 * fields of `DEFAULT_BEHAVIOUR`.
 */
export function behaviourByImage(rules: readonly BehaviourRule[]): (run: DesiredRun) => SimulatedBehaviour {
  return (run) => ({ ...DEFAULT_BEHAVIOUR, ...rules.find((rule) => rule.image.test(run.spec.image))?.behaviour })
}
