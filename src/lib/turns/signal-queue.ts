const SIGKILL = 9

/**
 * Makes the function that sends signals to the processes of one exec. `deliver` sends one of them at a time, however many a
 * client asks for, and must not reject. A signal that waits already is not sent twice; it then comes last, so that the processes
 * see the latest of SIGSTOP and SIGCONT last. SIGKILL takes the place of all that wait.
 */
export function makeSignalQueue(deliver: (signal: number) => Promise<void>): (signal: number) => void {
  const waiting = new Set<number>()
  let isDelivering = false

  async function deliverAll(): Promise<void> {
    isDelivering = true
    // The loop also visits signals that are added meanwhile.
    for (const signal of waiting) {
      waiting.delete(signal)
      await deliver(signal)
    }
    isDelivering = false
  }

  return (signal) => {
    if (signal === SIGKILL) waiting.clear()
    waiting.delete(signal)
    waiting.add(signal)
    if (!isDelivering) void deliverAll()
  }
}
