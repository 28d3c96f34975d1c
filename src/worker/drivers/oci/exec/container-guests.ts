import { localHostCommands, type HostCommands } from '../../../processes/system-calls.ts'
import type { Container } from '../container.ts'
import { makeContainerGuest, type ContainerGuest, type ContainerGuestDeps } from './container-guest.ts'
import { makeFifoPool, type FifoPool } from './fifo-pool.ts'

export type ContainerGuestsDeps = Omit<ContainerGuestDeps, 'fifoPool'> & {
  /** Creates FIFOs. Absent: a process of its own does, for each batch. */
  readonly commands?: Pick<HostCommands, 'callSystem'>
}

/** The guests of a worker's containers. All channels of a container share one guest, and all guests share the ready pipes. */
type ContainerGuests = { of(container: Container): ContainerGuest }

/** The maximum number of guests in memory. A dropped guest is created again on demand. */
const KEPT_LIMIT = 2_048

/** Creates an empty set of guests, which are created on demand. */
export function makeContainerGuests({ commands = localHostCommands, ...deps }: ContainerGuestsDeps): ContainerGuests {
  const guests = new Map<string, ContainerGuest>()
  let fifoPool: FifoPool | null = null
  return {
    of(container) {
      const key = `${container.id} ${String(container.initPid)}`
      fifoPool ??= makeFifoPool(container.pipeDir, { commands, log: deps.log })
      const guest = guests.get(key) ?? makeContainerGuest(container, { ...deps, fifoPool })
      guests.delete(key)
      guests.set(key, guest)
      const [oldest] = guests.keys()
      if (guests.size > KEPT_LIMIT && oldest !== undefined) guests.delete(oldest)
      return guest
    },
  }
}
