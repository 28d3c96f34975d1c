import type { RunId } from '../../../domain/ids.ts'
import type { RouterRules } from './router-rules.ts'

/** The router's rules of each run. A run that takes a warm sandbox attaches its network again, usually with the same rules. */
export type RunRules = {
  /** Applies the rules of a run. Does nothing if this process has applied the same rules for it last. */
  apply(run: RunId, rules: readonly string[]): Promise<void>
  forget(run: RunId): void
}

export function makeRunRules(router: Pick<RouterRules, 'apply'>): RunRules {
  const applied = new Map<RunId, string>()
  return {
    async apply(run, rules) {
      const text = rules.join('\n')
      if (applied.get(run) === text) return
      await router.apply(rules)
      applied.set(run, text)
    },
    forget: (run) => void applied.delete(run),
  }
}
