import { Counter, type Registry } from 'prom-client'

/** Counts the command channels that `dial` opens: those of the API, of SSH connections and of previews. */
export function countChannels<Target, Socket>(
  register: Registry,
  dial: (target: Target, signal: AbortSignal) => Promise<Socket | null>,
): typeof dial {
  const opened = new Counter({
    name: 'sandyard_channels_opened_total',
    help: 'Command channels that were opened: by the API, for SSH connections and for connections of previews.',
    registers: [register],
  })
  return async (target, signal) => {
    const socket = await dial(target, signal)
    if (socket !== null) opened.inc()
    return socket
  }
}
