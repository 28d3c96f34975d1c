import { authenticate } from '../control/authenticate.ts'
import { createSandbox } from '../control/create-sandbox.ts'
import { deleteSandbox } from '../control/delete-sandbox.ts'
import type { ControlDeps } from '../control/deps.ts'
import { openChannel } from '../control/open-channel.ts'
import { getEvent, listEvents } from '../control/read-events.ts'
import { getOrg } from '../control/read-org.ts'
import { getSandbox, listSandboxes } from '../control/read-sandboxes.ts'
import { renameSandbox } from '../control/rename-sandbox.ts'
import { startSandbox } from '../control/start-sandbox.ts'
import { stopSandbox } from '../control/stop-sandbox.ts'
import type { UseCases } from './use-cases.ts'

/** The program's use cases as the transport asks for them. */
export function bindUseCases(deps: ControlDeps): UseCases {
  return {
    authenticate: (key) => authenticate(deps, key),
    createSandbox: (caller, input) => createSandbox(deps, caller, input),
    getSandbox: (caller, ref) => getSandbox(deps, caller, ref),
    listSandboxes: (caller, input) => listSandboxes(deps, caller, input),
    startSandbox: (caller, ref, input) => startSandbox(deps, caller, ref, input),
    stopSandbox: (caller, ref) => stopSandbox(deps, caller, ref),
    renameSandbox: (caller, ref, change) => renameSandbox(deps, caller, ref, change),
    deleteSandbox: (caller, ref) => deleteSandbox(deps, caller, ref),
    getOrg: (caller) => getOrg(deps, caller),
    listEvents: (caller, input) => listEvents(deps, caller, input),
    getEvent: (caller, id) => getEvent(deps, caller, id),
    openChannel: (caller, id, signal) => openChannel(deps, caller, id, signal),
  }
}
