import type { Container } from '../container.ts'
import { makeContainerGuest, type ContainerGuest, type ContainerGuestDeps } from './container-guest.ts'

/** The guests of a worker's containers. All channels of a container share one guest and its ready pipes. */
type ContainerGuests = { of(container: Container): ContainerGuest }

/** The maximum number of guests in memory. A dropped guest is created again on demand. */
const KEPT_LIMIT = 2_048

/** Creates an empty set of guests, which are created on demand. */
export function makeContainerGuests(deps: ContainerGuestDeps): ContainerGuests {
  const guests = new Map<string, ContainerGuest>()
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
