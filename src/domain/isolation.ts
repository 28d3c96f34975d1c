/**
 * What separates a sandbox from its worker's machine, from the weakest to the strongest: a container on the machine's own
 * kernel, a kernel in user space (gVisor), or a virtual machine.
 */
export const ISOLATION_LEVELS = ['container', 'gvisor', 'microvm'] as const
export type IsolationLevel = (typeof ISOLATION_LEVELS)[number]

/** The label by which a request demands at least this isolation. */
export const ISOLATION_LABEL = 'sandyard.isolation'

/** The name of the fact in which a worker reports the isolation of a run. */
export const ISOLATION_LEVEL_FACT = 'isolation_level'

/** The ability of a worker whose sandboxes have at least this isolation. */
export type IsolationAbility = `isolation_${IsolationLevel}`

/** Whether a text is the name of an isolation level. */
export function isIsolationLevel(text: string): text is IsolationLevel {
  return ISOLATION_LEVELS.some((level) => level === text)
}

/** The abilities of a worker whose sandboxes have this isolation: the level and every weaker one. */
export function isolationAbilities(level: IsolationLevel): readonly IsolationAbility[] {
  return ISOLATION_LEVELS.slice(0, ISOLATION_LEVELS.indexOf(level) + 1).map(isolationAbility)
}

/** The ability that a worker needs for sandboxes with at least this isolation. */
export function isolationAbility(level: IsolationLevel): IsolationAbility {
  return `isolation_${level}`
}

/** The strongest isolation among a worker's abilities. Null if its sandboxes have none. */
export function isolationOf(abilities: readonly string[]): IsolationLevel | null {
  return ISOLATION_LEVELS.findLast((level) => abilities.includes(isolationAbility(level))) ?? null
}
