import type { RunOutcome, StartFailure } from './run.ts'

/** What failed, for each reason of a failed start. */
export const START_FAILURE_MEANINGS: Readonly<Record<StartFailure, string>> = {
  image: "the image can't be used",
  registry: 'the image could not be pulled from its registry',
  patch: 'a patch of the root file system could not be applied',
  mount: 'a mount could not be made',
  config: "the specification can't be run",
  network: 'the network could not be made',
  disk: 'the disk could not be made or used',
  runtime: 'the runtime refused the start',
  host: 'the worker lacks something for the start',
  cancelled: 'the start was cancelled by a stop',
}

/** Describes how a run ended, as a part of a sentence. */
export function describeOutcome(outcome: RunOutcome): string {
  switch (outcome.kind) {
    case 'exited':
      return outcome.code === 0
        ? 'the workload ended without an error'
        : `the workload exited with code ${String(outcome.code)}`
    case 'signalled':
      return `the workload was ended by ${outcome.signal}`
    case 'out_of_memory':
      return 'the sandbox ran out of memory'
    case 'disk_full':
      return "the worker stopped it because the machine's disk was full and its files grew most"
    case 'stopped':
      return 'it was stopped'
    case 'start_failed':
      return `the start failed: ${START_FAILURE_MEANINGS[outcome.reason]}: ${outcome.message}`
    case 'lost':
      return `the run was lost: ${outcome.message}`
  }
}
