/** The methods of every route. It tells a wrong path (404) from a wrong method (405). */
export type RouteTable = {
  add(method: string, template: string): void
  /** The methods of all routes that match a path, sorted. Empty for a path without a route. */
  methodsFor(path: string): readonly string[]
}

/** Creates an empty table. Templates are the router's: `:name` matches one step, `*` the rest. */
export function makeRouteTable(): RouteTable {
  const methods = new Map<string, { readonly shape: RegExp; readonly names: Set<string> }>()
  return {
    add(method, template) {
      const known = methods.get(template) ?? { shape: compilePathTemplate(template), names: new Set<string>() }
      known.names.add(method)
      methods.set(template, known)
    },
    methodsFor(path) {
      const names = [...methods.values()].filter(({ shape }) => shape.test(path)).flatMap((route) => [...route.names])
      return [...new Set(names)].toSorted()
    },
  }
}

/** A pattern for paths whose template has `:name` or `{name}` for a step. Its groups have the names of the parameters. */
export function compilePathTemplate(template: string): RegExp {
  const steps = template.split('/').map((step) => {
    if (step === '*') return '.*'
    const name = /^:(\w+)$|^\{(\w+)\}$/.exec(step)
    return name === null ? step.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&') : `(?<${name[1] ?? name[2] ?? ''}>[^/]+)`
  })
  return new RegExp(`^${steps.join('/')}$`)
}
