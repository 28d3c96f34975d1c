import { setTimeout as sleep } from 'node:timers/promises'

/** Lets time pass: between samples, so that one does not meet the remains of the other. */
export function pause(ms: number): Promise<void> {
  return sleep(ms)
}
