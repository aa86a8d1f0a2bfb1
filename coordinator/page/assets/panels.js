// The parts of the page. Each panel is a class in a module of its own, which is loaded when it is first shown.
//
// A panel has `mount(element, store, place, router)`, `update(place)` after each change of the store or of the address,
// and `unmount()`, which ends all that it began. Its module's default export is the class. One without `title` is not in
// the navigation.

export const PANELS = [
  { name: "run", title: "Run", load: () => import("./panels/run.js") },
  { name: "round", title: "Round", load: () => import("./panels/round.js") },
  { name: "members", title: "Members", load: () => import("./panels/members.js") },
  { name: "member", load: () => import("./panels/member.js") },
  { name: "join", title: "Join", load: () => import("./panels/join.js") },
  { name: "operate", title: "Operate", load: () => import("./panels/operate.js") },
];

export function panelOf(name) {
  return PANELS.find((panel) => panel.name === name) ?? null;
}
