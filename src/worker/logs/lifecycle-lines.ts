import type { RunOutcome } from '../../contract/workers/worker-protocol.ts'

/** The lines in a sandbox's log about its runs. The sandbox's owner reads them, and they contain no secrets. */
export const LIFECYCLE_LINES = {
  started: 'started',
  stopRequested: 'stop requested',
  ended: (outcome: RunOutcome): string => {
    switch (outcome.kind) {
      case 'exited':
        return `ended with code ${String(outcome.code)}`
      case 'signalled':
        return `ended by signal ${outcome.signal}`
      case 'out_of_memory':
        return 'out of memory: the sandbox reached its memory limit and was killed'
      case 'disk_full':
        return "stopped because the machine's disk is full and this sandbox's files grew most"
      case 'stopped':
        return 'stopped'
      case 'start_failed':
        return `start failed: ${outcome.message}`
      case 'lost':
        return `lost: ${outcome.message}`
    }
  },
  image: (reference: string, digest: string, how: 'pulled' | 'stored'): string =>
    how === 'pulled' ? `image ${reference} pulled (${digest})` : `image ${reference} was here already (${digest})`,
} as const
