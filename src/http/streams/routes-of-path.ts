/** A table of the methods of each route, for paths that have a route but not with this method. */
export type RouteTable = {
  add(method: string, template: string): void
  /** The methods of every route that a path fits, sorted; empty for a path without a route. */
  methodsFor(path: string): readonly string[]
}

/** An empty table. Templates are those of the router: `:name` is one step, `*` is the rest. */
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

/** The shape of a path whose template has `:name` or `{name}` for a step. */
export function compilePathTemplate(template: string): RegExp {
  const steps = template.split('/').map((step) => {
    if (step === '*') return '.*'
    const name = /^:(\w+)$|^\{(\w+)\}$/.exec(step)
    return name === null ? step.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&') : `(?<${name[1] ?? name[2] ?? ''}>[^/]+)`
  })
  return new RegExp(`^${steps.join('/')}$`)
}
