import type { Channel, MessageHandlers } from './channel.ts'

/** `core.ping` and `core.touch`: answered at once; only a touch keeps a sandbox from being idle (section 10). */
export function makeMaintenanceHandlers(
  channel: Channel,
  onActivity: () => void,
): MessageHandlers<'core.ping' | 'core.touch'> {
  let touches = 0
  return {
    handlers: {
      'core.ping': ({ id }) => {
        channel.send(id, 'core.pong', {})
      },
      'core.touch': ({ id }) => {
        onActivity()
        touches += 1
        channel.send(id, 'core.touched', { activity_seq: touches })
      },
    },
    close: () => {
      // every request was answered when it came
    },
  }
}
