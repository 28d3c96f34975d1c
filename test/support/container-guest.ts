import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import type { Container } from '../../src/worker/drivers/oci/container.ts'
import {
  makeContainerGuest,
  type ContainerGuest,
  type ContainerGuestDeps,
} from '../../src/worker/drivers/oci/exec/container-guest.ts'
import { makeFifoPool } from '../../src/worker/drivers/oci/exec/fifo-pool.ts'
import { localHostCommands } from '../../src/worker/processes/system-calls.ts'

/** A guest with pipes of its own. They are deleted with the folder of the container's start. */
export function makeGuest(container: Container, deps: Omit<ContainerGuestDeps, 'fifoPool'>): ContainerGuest {
  const folder = mkdtempSync(join(container.runDir, 'pipes-'))
  return makeContainerGuest(container, {
    ...deps,
    fifoPool: makeFifoPool(folder, { commands: localHostCommands, log: deps.log }),
  })
}
