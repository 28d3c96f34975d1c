import type { Guest } from '../../../channel/guest.ts'
import type { Container } from './container.ts'
import { makeContainerGuest, type ContainerGuestDeps } from './container-guest.ts'

/** The guests of a worker's containers, one for each, so that the pipes it keeps ready serve every channel. */
export type ContainerGuests = { of(container: Container): Guest }

/** The most that are kept; one that is dropped is made again when it is asked for. */
const KEPT_LIMIT = 2_048

/** Makes guests when they are first asked for. */
export function makeContainerGuests(deps: ContainerGuestDeps): ContainerGuests {
  const guests = new Map<string, Guest>()
  return {
    of(container) {
      const key = `${container.id} ${String(container.initPid)}`
      const guest = guests.get(key) ?? makeContainerGuest(container, deps)
      guests.delete(key)
      guests.set(key, guest)
      const [oldest] = guests.keys()
      if (guests.size > KEPT_LIMIT && oldest !== undefined) guests.delete(oldest)
      return guest
    },
  }
}
