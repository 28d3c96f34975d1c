import type { Config } from '../config.ts'
import { systemClock } from '../lib/clock.ts'
import type { Driver } from '../worker/drivers/driver.ts'
import { makeSimulatedDriver } from '../worker/drivers/simulated.ts'
import { chooseDriver, surveyDrivers, type DriverChoice } from './choose-driver.ts'
import { openMicrosandboxDriver } from './open-microsandbox-driver.ts'
import { openOciDriver } from './open-oci-driver.ts'
import type { DriverDeps } from './start-worker.ts'

const OPEN: Readonly<Record<DriverChoice['name'], (config: Config, deps: DriverDeps) => Promise<Driver>>> = {
  microsandbox: openMicrosandboxDriver,
  oci: openOciDriver,
  simulated: (_config, { logs }) => Promise.resolve(makeSimulatedDriver({ clock: systemClock, logs })),
}

/** Opens the driver that settings and machine choose, with why. Rejects, in words, with what the machine lacks for it. */
export async function openDriver(
  config: Config,
  deps: DriverDeps,
): Promise<{ readonly driver: Driver; readonly why: string }> {
  const { name, why } = chooseDriver(config.driver, config.driver === 'auto' ? await surveyDrivers(config) : [])
  return { driver: await OPEN[name](config, deps), why }
}
