import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import { once } from '../../lib/once.ts'
import type { Driver } from '../../worker/drivers/driver.ts'
import type { FoundRuntime } from '../../worker/drivers/oci/run/runtime.ts'
import { makeSimulatedDriver } from '../../worker/drivers/simulated.ts'
import { chooseDriver, surveyDrivers, type DriverChoice } from './choose-driver.ts'
import { openMicrosandboxDriver } from './open-microsandbox-driver.ts'
import { chooseRuntime, openOciDriver } from './open-oci-driver.ts'
import type { DriverDeps } from './worker-storage.ts'

type OpenDeps = DriverDeps & { readonly getRuntime: () => Promise<FoundRuntime> }

const DRIVER_OPENERS: Readonly<Record<DriverChoice['name'], (config: Config, deps: OpenDeps) => Promise<Driver>>> = {
  microsandbox: openMicrosandboxDriver,
  oci: openOciDriver,
  simulated: (_config, { logs }) => Promise.resolve(makeSimulatedDriver({ clock: systemClock, logs })),
}

/** Opens the driver that settings and machine choose, with why. Rejects, in words, with what the machine lacks for it. */
export async function openDriver(
  config: Config,
  deps: DriverDeps,
): Promise<{ readonly driver: Driver; readonly reason: string }> {
  const getRuntime = once(() => chooseRuntime(config)) // gVisor is tried by a sandbox
  const surveys = config.driver === 'auto' ? await surveyDrivers(config, getRuntime) : []
  const { name, reason } = chooseDriver(config.driver, surveys)
  return { driver: await DRIVER_OPENERS[name](config, { ...deps, getRuntime }), reason }
}
