import { SettingError, type Config } from '../../config.ts'
import { memoryForSandboxes } from '../../worker/drivers/shared/machine.ts'

/** The drivers whose sandboxes take no memory of this machine. */
const ELSEWHERE: readonly Config['driver'][] = ['kubernetes', 'simulated']

/** Throws `SettingError` if the reserve of the machine leaves no memory for sandboxes. Call it before anything is made. */
export function requireHostReserve({ driver, hostReserveMib }: Pick<Config, 'driver' | 'hostReserveMib'>): void {
  if (ELSEWHERE.includes(driver)) return
  try {
    memoryForSandboxes(hostReserveMib)
  } catch (error) {
    throw error instanceof Error ? new SettingError(error.message, { cause: error }) : error
  }
}
