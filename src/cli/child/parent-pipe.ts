import type { Socket } from 'node:net'

/** A child's side of the pipe between it and its parent. */
export type ParentPipe<Event> = {
  /** Sends a message to the parent, with a socket that then belongs to the parent alone. */
  tell(event: Event, socket?: Socket): void
  /** Closes the pipe after what was sent. */
  close(): void
}

/**
 * Opens the pipe. The parent alone decides when this process ends: it ends when the parent has ended, and it ignores the signals that a
 * service manager, or a terminal, sends to both of them.
 */
export function openParentPipe<Order, Event>(onOrder: (order: Order) => void): ParentPipe<Event> {
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => undefined)
  const onClosed = (): void => process.exit(1)
  process.on('disconnect', onClosed)
  process.on('message', onOrder)
  return {
    tell(event, socket) {
      process.send?.(event, socket, {}, () => undefined) // if the parent has ended, `onClosed` is called
    },
    close() {
      process.off('disconnect', onClosed)
      if (process.connected) process.disconnect()
    },
  }
}
