import { setTimeout as sleep } from 'node:timers/promises'

/** Waits between samples, so that one sample doesn't disturb the next. */
export function pause(ms: number): Promise<void> {
  return sleep(ms)
}
