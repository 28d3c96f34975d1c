import { UsageError, type Command } from './command.ts'
import { REMOVED_EXIT_CODE, runWorker } from '../worker/run-worker.ts'
import { FLEET_COMMANDS } from './worker-fleet.ts'

export const worker: Command = {
  usage:
    'worker [--join URL --token T | --token-stdin] [--name N] | token [--name N] [--expires-in 24h] [--json] | list [--json] | drain NAME [--deadline 10m] [--wait] | resume NAME | remove NAME [--force]',
  summary: 'run sandboxes on this machine for a control plane elsewhere; or, where that is, look after its workers',
  details: `On a new machine:
  sandyard worker --join URL     joins the control plane at URL and runs sandboxes until SIGTERM. It needs a join token once:
                                 from SANDYARD_JOIN_TOKEN, --token-stdin or --token. Later starts need neither. It dials
                                 the control plane and listens on no port. Exit code ${String(REMOVED_EXIT_CODE)}: it was removed.

Where the control plane's database is:
  sandyard worker token          prints a join token, which happens once; it serves one machine, for 24 hours
  sandyard worker list           every worker: its state, and what of it is taken
  sandyard worker drain NAME     it gets no new runs; what runs goes on to its end, or is asked to stop at the deadline;
                                 --wait: until nothing runs there
  sandyard worker resume NAME    it gets runs again
  sandyard worker remove NAME    it may not come back. Refused while runs, disks or volumes are there; --force gives them up:
                                 sandboxes and volumes that lay there begin anew, empty
`,
  run(call) {
    const [verb, ...args] = call.args
    if (verb === undefined) return runWorker(call)
    const act = FLEET_COMMANDS[verb]
    if (act === undefined) throw new UsageError(`usage: sandyard ${worker.usage}`)
    return act(call, args)
  },
}
